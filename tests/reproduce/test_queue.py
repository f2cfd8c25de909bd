"""The queue: its order, its stop and continuation, and the data that it publishes."""

from __future__ import annotations

import copy
import os
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from laconic.reproduce import document
from laconic.reproduce.claims import Claim
from laconic.reproduce.experiments import Experiment
from laconic.reproduce.measures import FINAL, TRAINING_LOSS
from laconic.reproduce.progress import PAGE
from laconic.reproduce.queue import Inline, Queue, work
from laconic.reproduce.runner import collect, curves
from laconic.reproduce.study import Short, Study
from laconic.run import Callback

COMMON = (
    "--dataset digits --model logistic --clients 10 --participants 3 --local-steps 2 --strategy loop --threads 1 "
    "--eval-every 1 --algorithm fed_avg"
)
CLAIM = {"a is above b": Claim(FINAL, "more", "a", "b")}
RUNS = {"a": "--local-lr 0.5", "b": "--local-lr 1e-4"}
SHORT = Study("short", Experiment(COMMON, RUNS, rounds=3), measures=(FINAL,), claims=CLAIM)
LONG = Study("long", Experiment(COMMON, RUNS, rounds=300), measures=(FINAL,), claims=CLAIM, short=Short(rounds=30))
SILENT = Study("silent", Experiment(COMMON, RUNS, rounds=2), measures=(FINAL,))
HOUR = 3600.0


def queue(studies: dict[str, Study], folder: Path, seeds: int = 3, mode: str = "short") -> Queue:
    return Queue(studies, mode, seeds, folder / "runs", folder / "docs")


def timeless(data: dict) -> dict:
    """Data without the running times."""
    runs = {label: {key: run[key] for key in run if key != "seconds"} for label, run in data["runs"].items()}
    return data | {"runs": runs}


def test_claims_per_hour_set_the_order(tmp_path: Path) -> None:
    gpu = Study("gpu", Experiment(COMMON, RUNS, rounds=3), needs_gpu=True)
    jobs = queue({"silent": SILENT, "long": LONG, "gpu": gpu, "short": SHORT}, tmp_path)
    assert [*dict.fromkeys(job.study for job in jobs.jobs)] == ["short", "long", "silent"]
    assert [(job.seeds, job.label) for job in jobs.jobs[:6]] == [(k, label) for k in (1, 2, 3) for label in "ab"]
    assert [*jobs.skipped] == ["gpu"]
    assert jobs.jobs[6].hours == pytest.approx(10 * jobs.jobs[0].hours), "30 rounds instead of 3"


def test_three_seeds_decide_a_claim_and_are_published(tmp_path: Path) -> None:
    assert queue({"short": SHORT}, tmp_path).run(1, time.time() + HOUR)
    data = document.load("short", tmp_path / "docs")
    assert data is not None and data["runs"]["a"]["seeds"] == [0, 1, 2]
    alone = collect("short", SHORT, "short", tmp_path / "elsewhere", Callback(), 3)
    assert timeless(data) == timeless(alone) | {"date": data["date"]}
    (verdict,) = document.verdicts(SHORT, data).values()
    assert verdict.kind == "holds" and "3 seeds" in verdict.evidence, verdict
    page = (tmp_path / "runs" / PAGE).read_text()
    assert page.count('class="done"') == 6 and "6 done" in page
    assert queue({"short": SHORT}, tmp_path).jobs == [], "nothing is missing"
    assert len(queue({"short": SHORT}, tmp_path, seeds=4).jobs) == 2, "one more seed of two settings"


def test_what_is_published_is_not_run_again(tmp_path: Path) -> None:
    assert queue({"short": SHORT}, tmp_path, seeds=1).run(1, time.time() + HOUR)
    first = document.load("short", tmp_path / "docs")
    for path in (tmp_path / "runs").iterdir():
        path.rename(tmp_path / f"gone-{path.name}")
    assert queue({"short": SHORT}, tmp_path, seeds=2).run(1, time.time() + HOUR)
    second = document.load("short", tmp_path / "docs")
    assert first is not None and second is not None
    rounds = {
        path.parent.name: len(path.read_text().splitlines()) for path in tmp_path.glob("runs/short/*/metrics.jsonl")
    }
    assert rounds == {"a": 1, "b": 1, "a-seed-1": 3, "b-seed-1": 3}, "seed 0 is checked up to its first evaluation"
    assert curves(second["runs"]["a"])[:1] == curves(first["runs"]["a"]) and second["runs"]["a"]["seeds"] == [0, 1]
    assert second["runs"]["a"]["seconds"][0] == first["runs"]["a"]["seconds"][0], "the time of the published run"


def test_published_seeds_of_other_code_are_run_again(tmp_path: Path) -> None:
    assert queue({"short": SHORT}, tmp_path, seeds=1).run(1, time.time() + HOUR)
    first = document.load("short", tmp_path / "docs")
    assert first is not None
    (other := copy.deepcopy(first))["runs"]["a"]["curves"][0]["loss"][0] *= 1.1
    document.save("short", SHORT, other, tmp_path / "docs")
    elsewhere = Queue({"short": SHORT}, "short", 2, tmp_path / "elsewhere", tmp_path / "docs")
    assert elsewhere.run(1, time.time() + HOUR)
    second = document.load("short", tmp_path / "docs")
    assert second is not None and second["runs"]["a"]["seeds"] == [0, 1]
    assert second["runs"]["a"]["curves"][0] == first["runs"]["a"]["curves"][0], "seed 0 is that of today's code"
    again = {job.label for job, (_, note) in elsewhere.states.items() if "of other code" in note}
    assert again == {"a"} and "of other code" in (tmp_path / "elsewhere" / PAGE).read_text()


def test_a_study_with_another_setting_is_run_again_and_its_page_says_so(tmp_path: Path) -> None:
    assert queue({"short": SHORT}, tmp_path, seeds=1).run(1, time.time() + HOUR)
    changed = replace(SHORT, experiment=Experiment(f"{COMMON} --batch-size 8", RUNS, rounds=3))
    assert [(job.seeds, job.label) for job in queue({"short": changed}, tmp_path, seeds=1).jobs] == [(1, "a"), (1, "b")]
    data = document.load("short", tmp_path / "docs")
    assert data is not None and data["setting"] == COMMON
    earlier = "Made by an earlier version of `laconic reproduce short --seeds 1`."
    earlier += " The current version uses `--batch-size 8` instead."
    assert document.command("short", changed, data) == earlier
    assert document.command("short", SHORT, data) == "Made by `laconic reproduce short --seeds 1`."
    del data["setting"]
    document.save("short", SHORT, data, tmp_path / "docs")
    assert len(queue({"short": SHORT}, tmp_path, seeds=1).jobs) == 2, "an unknown setting is run again"
    assert (
        document.command("short", SHORT, data) == "Made by an earlier version of `laconic reproduce short --seeds 1`."
    )


def test_a_setting_with_other_options_of_its_own_is_run_again(tmp_path: Path) -> None:
    assert queue({"short": SHORT}, tmp_path, seeds=2).run(1, time.time() + HOUR)
    first = document.load("short", tmp_path / "docs")
    changed = replace(SHORT, experiment=Experiment(COMMON, RUNS | {"b": "--local-lr 0.1"}, rounds=3))
    again = queue({"short": changed}, tmp_path, seeds=2)
    assert [(job.seeds, job.label) for job in again.jobs] == [(1, "a"), (1, "b"), (2, "a"), (2, "b")]
    assert again.run(1, time.time() + HOUR)
    second = document.load("short", tmp_path / "docs")
    assert first is not None and second is not None and second["runs"]["a"] == first["runs"]["a"]
    assert second["runs"]["b"]["curves"] != first["runs"]["b"]["curves"]
    assert second["runs"]["b"]["options"] == "--local-lr 0.1" and second["runs"]["b"]["seeds"] == [0, 1]


def test_a_setting_without_a_metric_of_the_study_is_run_again(tmp_path: Path) -> None:
    study = replace(SHORT, measures=(FINAL, TRAINING_LOSS))
    assert queue({"short": study}, tmp_path, seeds=1).run(1, time.time() + HOUR)
    assert queue({"short": study}, tmp_path, seeds=1).jobs == []
    data = document.load("short", tmp_path / "docs")
    assert data is not None
    losses = data["runs"]["a"]["curves"][0].pop("training_loss")
    document.save("short", study, data, tmp_path / "docs")
    again = queue({"short": study}, tmp_path, seeds=2)
    checked = {label: job.hours for job in again.jobs for label in [job.label] if job.seeds == 1}
    assert checked["b"] == pytest.approx(0.05 * checked["a"]), "a is run again, and b is checked"
    assert again.run(1, time.time() + HOUR)
    second = document.load("short", tmp_path / "docs")
    assert second is not None and second["runs"]["a"]["curves"][0]["training_loss"] == losses
    assert queue({"short": SHORT}, tmp_path, seeds=2).jobs == []


def test_a_study_that_tries_other_rates_is_run_again(tmp_path: Path) -> None:
    searched = Experiment(COMMON, {"a": "--local-lr {rate}"}, rounds=3, rates=("0.5", "0.1"), trial=1)
    study = Study("rates", searched, measures=(FINAL,), claims={}, short=Short(rates=("0.1",)))
    assert queue({"rates": study}, tmp_path, seeds=1).run(1, time.time() + HOUR)
    assert queue({"rates": study}, tmp_path, seeds=1).jobs == []
    more = replace(study, short=None)
    assert queue({"rates": more}, tmp_path, seeds=1).run(1, time.time() + HOUR)
    data = document.load("rates", tmp_path / "docs")
    assert data is not None and data["tried"]["rates"] == ["0.5", "0.1"] and data["runs"]["a"]["rate"] == "0.5"
    full = replace(more, experiment=replace(searched, server_rates=("30",)))
    document.save("rates", full, data | {"mode": "full"}, tmp_path / "docs")
    assert [job.label for job in queue({"rates": full}, tmp_path, seeds=1).jobs] == ["a"], "no server rates were tried"
    del data["tried"]["server_rates"]
    document.save("rates", full, data | {"mode": "full"}, tmp_path / "docs")
    assert len(queue({"rates": full}, tmp_path, seeds=1).jobs) == 1
    assert queue({"rates": more}, tmp_path, seeds=1).jobs == [], "data without the key: no server rates were tried"


def test_published_seeds_count_little_in_the_estimate(tmp_path: Path) -> None:
    assert queue({"short": SHORT}, tmp_path, seeds=1).run(1, time.time() + HOUR)
    third = replace(SHORT, experiment=Experiment(COMMON, RUNS | {"c": RUNS["a"]}, rounds=3))
    a, b, c = (job.hours for job in queue({"short": third}, tmp_path, seeds=1).jobs)
    assert a == b == pytest.approx(0.05 * c)


def test_the_first_seed_includes_trials_in_the_estimate(tmp_path: Path) -> None:
    runs = {"a": "--local-lr {rate}", "b": "--local-lr {rate}", "c": "--local-lr 0.5"}
    searched = Experiment(
        COMMON, runs, rounds=300, rates=("0.5", "0.1"), server_rates=("2",), trial=40, long_trials=("b",)
    )
    study = Study("rates", searched, measures=(FINAL,), claims=CLAIM)
    jobs = queue({"rates": study}, tmp_path, seeds=2, mode="full").jobs
    first, second = jobs[:3], jobs[3:]
    assert [job.hours / second[2].hours for job in second] == pytest.approx([1, 1, 1])
    # Two local rates, each with two server rates: 4 trials of 40 rounds, or of 100.
    assert [300 * job.hours / second[2].hours for job in first] == pytest.approx([460, 700, 300])


def test_workers_have_a_low_priority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[tuple] = []

    class Pool(Inline):
        def __init__(self, *arguments: object) -> None:
            started.append(arguments)

    monkeypatch.setattr("laconic.reproduce.queue.ProcessPoolExecutor", Pool)
    assert queue({"short": SHORT}, tmp_path, seeds=1).run(2, time.time() + HOUR)
    ((count, context, initializer),) = started
    with ProcessPoolExecutor(1, context, initializer) as executor:
        assert count == 2 and executor.submit(os.nice, 0).result() >= 10


def test_a_full_study_is_longer_and_starts_again(tmp_path: Path) -> None:
    study = Study("short", SHORT.experiment, measures=(FINAL,), claims=CLAIM, short=Short(rounds=2))
    assert queue({"short": study}, tmp_path, seeds=1).run(1, time.time() + HOUR)
    assert [job.seeds for job in queue({"short": study}, tmp_path, seeds=1, mode="full").jobs] == [1, 1]
    assert queue({"short": study}, tmp_path, seeds=1, mode="full").run(1, time.time() + HOUR)
    data = document.load("short", tmp_path / "docs")
    assert data is not None and data["rounds"] == 3 and curves(data["runs"]["a"])[0][-1]["round"] == 3
    assert queue({"short": study}, tmp_path, seeds=1).jobs == [], "a study that is published in full stays full"


def test_the_time_ends_a_run_and_the_next_queue_continues_it(tmp_path: Path) -> None:
    stopped = queue({"long": LONG}, tmp_path, seeds=1, mode="full")
    assert not stopped.run(1, time.time() + 0.5)
    lines = len((tmp_path / "runs/long/a/metrics.jsonl").read_text().splitlines())
    assert 1 <= lines < 300 and document.load("long", tmp_path / "docs") is None
    assert 'class="stopped"' in (tmp_path / "runs" / PAGE).read_text()
    study = Study("long", Experiment(COMMON, RUNS, rounds=lines + 2), measures=(FINAL,))
    assert queue({"long": study}, tmp_path, seeds=1).run(1, time.time() + HOUR)
    continued = document.load("long", tmp_path / "docs")
    assert continued is not None
    alone = collect("long", study, "short", tmp_path / "other", Callback())
    assert timeless(continued)["runs"] == timeless(alone)["runs"]


def test_a_setting_that_cannot_run_does_not_stop_the_others(tmp_path: Path) -> None:
    wrong = Study("wrong", Experiment(COMMON, {"a": "--local-lr -1"}, rounds=2), measures=(FINAL,), claims=CLAIM)
    both = queue({"wrong": wrong, "silent": SILENT}, tmp_path, seeds=2)
    assert both.run(1, time.time() + HOUR)
    states = [(job.study, state) for job, (state, _) in both.states.items()]
    assert states == [("wrong", "failed"), ("wrong", "skipped"), *[("silent", "done")] * 4]
    assert "local_lr" in (tmp_path / "runs" / PAGE).read_text()


def test_three_seeds_are_kept_until_there_are_three_of_the_longer_form(tmp_path: Path) -> None:
    study = Study("short", SHORT.experiment, measures=(FINAL,), claims=CLAIM, short=Short(rounds=2))
    assert queue({"short": study}, tmp_path).run(1, time.time() + HOUR)
    longer = queue({"short": study}, tmp_path, mode="full")
    published = []
    for job in longer.jobs:
        longer._finish(job, work(job, time.time() + HOUR, 1))
        published.append((document.load("short", tmp_path / "docs") or {})["rounds"])
    assert published == [2] * 5 + [3]


def test_the_page_says_how_far_the_running_job_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("laconic.reproduce.queue.REFRESH", 0.0)
    pages: list[str] = []
    monkeypatch.setattr(Queue, "_refresh", lambda self: (self._write(), pages.append((self.runs / PAGE).read_text())))
    assert queue({"short": SHORT}, tmp_path, seeds=1).run(1, time.time() + HOUR)
    assert "running since" in pages[0] and ", a: round 1" in pages[0] and ", a: round 2" in pages[1]


def draw(mode: str, seed: int) -> dict[str, dict[str, float | None]]:
    return {"a": {FINAL.name: 80.0 + seed}, "b": {FINAL.name: 70.0 + 1.5 * seed}}


def test_computed_seeds_are_added_to_published_ones(tmp_path: Path) -> None:
    study = Study("drawn", compute=draw, measures=(FINAL,), claims=CLAIM)
    document.save("drawn", study, collect("drawn", study, "short", tmp_path, Callback(), 2), tmp_path / "docs")
    third = queue({"drawn": study}, tmp_path)
    assert [job.seeds for job in third.jobs] == [3]
    assert third.run(1, time.time() + HOUR)
    data = document.load("drawn", tmp_path / "docs")
    assert data is not None and data["rows"]["b"][FINAL.name] == [70.0, 71.5, 73.0] and data["seeds"] == [0, 1, 2]
    exact = Study("drawn", compute=draw, exact=True, measures=(FINAL,), claims=CLAIM)
    assert queue({"drawn": exact}, tmp_path).jobs == []


@pytest.mark.long
def test_two_processes_publish_what_one_does(tmp_path: Path) -> None:
    studies = {"short": SHORT, "silent": SILENT}
    assert queue(studies, tmp_path / "one").run(1, time.time() + HOUR)
    assert queue(studies, tmp_path / "two").run(2, time.time() + HOUR)
    for name in studies:
        one, two = (document.load(name, tmp_path / folder / "docs") for folder in ("one", "two"))
        assert one is not None and two is not None and timeless(one) == timeless(two)
