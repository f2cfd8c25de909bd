"""Every reproduction: its name, its settings, its claims, and its quick form on the shipped digits."""

from __future__ import annotations

import tomllib
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from laconic import DataError
from laconic.cli.view import LiveView
from laconic.data import ClientData
from laconic.reproduce import computed, document
from laconic.reproduce.catalog import PAPERS, REPRODUCTIONS
from laconic.reproduce.claims import WORDS, Claim, Result, judge, labels_of
from laconic.reproduce.computed import RESNET_18, bits_of_two_way_training
from laconic.reproduce.options import options
from laconic.reproduce.plans import plan
from laconic.reproduce.runner import Runner, collect
from laconic.reproduce.study import Mode
from laconic.reproduce.tables import about, command, grid, grids, results, verdicts
from laconic.run.config import load_config

NAMES = {
    "fedamd": "table2 figure1 figures2-4 figures5-7 emnist",
    "fed-ef": "figures2-3 figure21 figure1 tables3-6 figure4 figure5 figure20",
    "fedcams": "figure4 tables1-2 epsilon figures1-3",
    "fedcomgate": "figure6 figure7 figure8 figure9",
    "fedbnlaca": "figures1-4 threshold",
}
STUDIES = {name: study for each in REPRODUCTIONS.values() for name, study in each.studies.items()}
FAST = (
    "fedamd-figure1",
    "fed-ef-tables3-6",
    "fedcams-figure4",
    "fedcomgate-figure8",
    "fedbnlaca-figures1-4",
    "frontier",
)
"""One reproduction of each paper, and the frontier. The quick forms of the others are long tests."""
DOCS = Path(__file__).parents[2] / "docs"


def test_every_name_is_there() -> None:
    assert {f"{paper}-{what}" for paper, each in NAMES.items() for what in each.split()} <= set(REPRODUCTIONS)
    assert len(STUDIES) == sum(len(each.studies) for each in REPRODUCTIONS.values()), "two studies share a name"


def test_every_run_has_a_folder_of_its_own(tmp_path: Path) -> None:
    for name, study in STUDIES.items():
        if study.experiment is not None:
            extent = plan(study, study.experiment, "full", 1)
            runner = Runner(study.experiment, extent, tmp_path, LiveView(Console(quiet=True)))
            folders = {runner._directory(label) for label in study.experiment.runs}
            assert len(folders) == len(study.experiment.runs), name


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in FAST else [pytest.mark.long]) for name in REPRODUCTIONS]
)
def test_the_quick_form_goes_the_whole_way(name: str, tmp_path: Path) -> None:
    for key, study in REPRODUCTIONS[name].studies.items():
        data = collect(key, study, "quick", tmp_path, LiveView(Console(quiet=True)))
        numbers = results(study, data)
        if study.experiment is not None:
            assert set(numbers) == set(study.quick or [*study.experiment.runs][:4])
            assert all(len(run["curves"][0]["accuracy"]) == 3 or "diverged" in run for run in data["runs"].values())
        for result in (result for runs in numbers.values() for result in runs.values()):
            assert [*result.numbers] == [measure.name for measure in study.measures]
        tables = [grid(study, data), *grids(study, data)]
        assert len(tables[0].rows) == len(numbers) and (len(tables) > 2) == bool(study.references)
        assert all(len(row) == len(table.head) for table in tables for row in table.rows)
        assert len(verdicts(study, data)) == len(study.claims)


@pytest.mark.parametrize("name", [name for name, study in STUDIES.items() if study.experiment])
def test_the_settings_of_the_whole_form_are_settings(name: str) -> None:
    experiment = STUDIES[name].experiment
    assert experiment is not None
    assert bool(experiment.rates) == any("{rate}" in line for line in experiment.runs.values()), "rates to try"
    for label, line in experiment.runs.items():
        said = options(f"{experiment.common} {line.replace('{rate}', '0.1')}")
        own = said.get("rounds")
        assert experiment.rounds if own is None else own > experiment.rounds, f"{label}: the length is said once"
        assert {"algorithm", "dataset", "clients", "model"} <= said.keys(), f"{label}: left to defaults"
        config = load_config(None, said)
        assert (config.algorithm, config.model) == (said["algorithm"], said["model"])
        config.build_algorithm()


@pytest.mark.parametrize("name", STUDIES)
def test_claims_and_numbers_are_about_runs_that_exist(name: str) -> None:
    study = STUDIES[name]
    known = (
        set(study.experiment.runs) if study.experiment else {*results(study, document.load(name, DOCS) or {"rows": {}})}
    )
    measured = {measure.name for measure in study.measures}
    for text, claim in study.claims.items():
        beside = STUDIES[study.beside].experiment if study.beside else None
        assert {*claim.labels} <= known | set(beside.runs if beside else ()), text
        assert not hasattr(claim, "measure") or claim.measure.name in measured, text
    for label, numbers in study.paper.items():
        assert label in known and set(numbers) <= measured
    for labels in (study.quick, study.short.labels if study.short else ()):
        assert set(labels) <= known


@pytest.mark.parametrize("name", REPRODUCTIONS)
def test_claims_are_true_of_the_papers_own_numbers(name: str) -> None:
    for study in REPRODUCTIONS[name].studies.values():
        numbers = {label: {0: Result(row)} for label, row in study.paper.items()}
        for text, claim in study.claims.items():
            rows = [study.paper.get(label, {}) for label in claim.labels]
            if isinstance(claim, Claim) and all(claim.measure.name in row for row in rows):
                assert judge(claim, numbers).agrees, (text, rows)


def test_clients_of_fed_ef_and_fed_comgate_have_at_most_two_classes() -> None:
    """Fed-EF, section 5; FedCOMGATE, B.2: each shard has one class. Only the labels of MNIST do not divide evenly."""
    commons = [
        study.experiment.common
        for paper in ("Fed-EF", "FedCOMGATE")
        for name, reproduction in PAPERS[paper].items()
        for study in reproduction.studies.values()
        if study.experiment is not None and name != "fedcomgate-figure6"  # writers
    ]
    partitions = {(settings["dataset"], settings["partition"]) for settings in map(options, commons)}
    assert partitions == {("mnist", "shards:2:single"), ("fashion-mnist", "shards:2"), ("cifar10", "shards:2")}


@pytest.mark.parametrize("mode", ["quick", "full"])
def test_clients_of_figure_7_have_at_most_two_classes(mode: Mode, monkeypatch: pytest.MonkeyPatch) -> None:
    classes: list[int] = []

    def cosines(clients: ClientData, model: str, seed: int) -> np.ndarray:
        for client in range(len(clients)):
            labels = clients.batch(client, np.arange(clients.size(client)))[-1]
            classes.append(len(labels.unique()))
        return np.eye(len(clients))

    monkeypatch.setattr(computed, "client_cosines", cosines)
    try:
        computed.gradient_similarity(mode, 0)
    except DataError as error:
        pytest.skip(str(error))
    assert len(classes) == 40 and max(classes[20:]) == 2 < max(classes[:20])


@pytest.mark.parametrize(
    ("study", "text", "ones", "others"),
    [
        (
            "fedcams-two-way",
            "sign: one-way takes at most 55 % of the uncompressed",
            {"sign, one-way"},
            {"uncompressed"},
        ),
        ("fedcams-two-way", "sign: two-way takes at most a tenth", {"sign, two-way"}, {"sign, one-way"}),
        ("fedamd-figure1-20", "p = 0.9 is above", {"p = 0.9"}, {"p = 0.5", "p = 0.7"}),
        ("fedamd-figures5-7-40", "p = 0.9 is above p = 0.5 and p = 0.7, K = 5", {"p = 0.9, K = 5"}, None),
        ("fedamd-figure1-20", "at A = 20 the optimal p and {0,1} are above", {"p optimal", "{0,1}"}, None),
        ("fedamd-figure1-20", "at A = 20 the optimal p and {0,1} are within", {"p optimal"}, {"{0,1}"}),
        ("fedbnlaca-figures1-2", "FedNLACA takes fewer bytes than FedNLAA", {"fed_nlaca"}, {"fed_nlaa"}),
        ("fedbnlaca-figures3-4", "with top-k 1/128 FedNLACA takes", {"fed_nlaca, 1/128"}, {"fed_nlaa"}),
    ],
)
def test_claims_judge_all_that_they_say(study: str, text: str, ones: set[str], others: set[str] | None) -> None:
    (claim,) = (claim for key, claim in STUDIES[study].claims.items() if key.startswith(text))
    assert isinstance(claim, Claim) and {*labels_of(claim.ones)} == ones
    assert others is None or {*labels_of(claim.others)} == others


def test_the_paper_claims_two_way_compression_for_full_participation_only() -> None:
    """FedCAMS, appendix D: "for the partial participating setting, it will encounter a synchronization issue"."""
    assert len(STUDIES["fedcams-two-way"].claims) == 6 and not STUDIES["fedcams-two-way-sampled"].claims


def test_downlinks_with_a_threshold_have_the_strategy_of_their_algorithm() -> None:
    """FedBNLACA's Algorithm 2: NLA in both directions, or AA in both (FedBACA)."""
    found = Counter[tuple[str, str]]()
    for reproduction in PAPERS["FedBNLACA"].values():
        for experiment in filter(None, (study.experiment for study in reproduction.studies.values())):
            for line in experiment.runs.values():
                algorithm = load_config(None, options(f"{experiment.common} {line}")).build_algorithm()
                if getattr(algorithm.downlink, "threshold", None):
                    found[algorithm.name, algorithm.downlink.aggregation] += 1
    assert found.keys() == {("fed_bnlaca", "lazy"), ("fed_baca", "accelerated")}, found


def test_bits_are_exact() -> None:
    bits = bits_of_two_way_training("full", 0)
    d, rounds = RESNET_18, 500
    assert bits["sign"]["one-way, bits"] == (32 + d) * rounds + 32 * d * rounds
    assert bits["sign"]["two-way, bits"] == (32 + d) * 2 * rounds
    for ratio in (64, 128, 256):
        k = d // ratio
        assert bits[f"top_k:1/{ratio}"]["two-way, bits"] == 32 * 2 * k * 2 * rounds
        assert bits[f"top_k:1/{ratio}"]["one-way, bits"] == 32 * (2 * k + d) * rounds
        # Positions are entropy-coded: far below the 32 bits that the paper counts for each.
        assert bits[f"top_k:1/{ratio}"]["two-way, bits of our packets"] < 0.7 * 32 * 2 * k * 2 * rounds


def test_our_discussion_is_about_our_results_only(tmp_path: Path) -> None:
    notes = tomllib.loads((DOCS / "data/notes.toml").read_text())
    assert notes["notes"].keys() <= STUDIES.keys() and notes["findings"].keys() == {*PAPERS, "frontier"}
    assert notes["summary"].keys() == PAPERS.keys()
    theirs, none = document.pages(DOCS), document.pages(tmp_path)
    for paper, summary in notes["summary"].items():
        page = f"reproductions/{paper.lower()}.md"
        finding = notes["findings"][paper].replace("](", "](../")
        assert summary in theirs[document.PAGE] and summary not in none[document.PAGE]
        assert finding in theirs[page] and finding not in none[page]


def test_the_findings_take_one_screen() -> None:
    """A screen has about 250 words."""
    findings = [line for line in document.pages(DOCS)[document.PAGE].splitlines() if line.startswith("- **[")]
    assert len(findings) == len(PAPERS) and sum(len(line.split()) for line in findings) <= 250


def test_the_pages_are_made_of_the_data_beside_them() -> None:
    for name, text in document.pages(DOCS).items():
        assert (DOCS / name).read_text() == text, f"{name}: run: laconic reproduce --render"
    assert {path.name for path in (DOCS / "reproductions").iterdir()} == {f"{paper.lower()}.md" for paper in PAPERS}


def test_the_summary_counts_every_verdict_once() -> None:
    words = Counter[str]()
    for name, study in STUDIES.items():
        if (data := document.load(name, DOCS)) is not None and not name.startswith("frontier"):
            beside = document.load(study.beside, DOCS) if study.beside else None
            words.update(verdict.word for verdict in verdicts(study, data, beside).values())
    (row,) = (line for line in (DOCS / document.PAGE).read_text().splitlines() if line.startswith("| all |"))
    assert [int(cell) for cell in row.strip("| ").split(" | ")[2:]] == [words[word] for word in WORDS]


def test_the_summary_says_how_many_claims_hold_by_arithmetic() -> None:
    exact = [name for name, study in STUDIES.items() if study.exact]
    assert exact == ["fedcams-tables1-2"], "count those of other studies, too"
    data = document.load(*exact, DOCS)
    assert data is not None
    holds = sum(verdict.kind == "holds" for verdict in verdicts(STUDIES[exact[0]], data).values())
    (row,) = (line for line in (DOCS / document.PAGE).read_text().splitlines() if line.startswith("| all |"))
    text = f"Of the {row.split(' | ')[2]} claims that hold, {holds} are exact computations, which need no seeds."
    assert holds and text in (DOCS / document.PAGE).read_text()


def test_a_shortened_computation_says_so() -> None:
    study, data = STUDIES["fed-ef-figure20"], {"mode": "short", "date": "", "software": "", "seeds": [0], "rows": {}}
    assert "2,000 of 100,000 trials: shortened" in about(study, data)
    assert "; 100,000 trials" in about(study, data | {"mode": "full"})


def test_the_line_above_a_table_says_what_was_run() -> None:
    name = "fed-amd-table2-shuffled"
    study, data = STUDIES[name], document.load(name, DOCS)
    assert study.experiment is not None and data is not None
    rates = {"rates": [*study.experiment.rates], "server_rates": [*study.experiment.server_rates], "trial": 40}
    run = {"rate": "0.1", "seeds": [0, 1, 2], "curves": []}
    whole = data | {"mode": "full", "rounds": 400, "tried": rates, "runs": dict.fromkeys(study.experiment.runs, run)}
    assert command(name, study, whole) == f"Made by `laconic reproduce {name} --full --seeds 3`."
    assert about(study, whole).startswith("3 seeds; 400 rounds; local rate chosen from 0.1, 0.03")
    fewer = {label: each for label, each in whole["runs"].items() if label != "scaffold"}
    for changed in ({"rounds": 100}, {"tried": rates | {"server_rates": []}}, {"runs": fewer}):
        assert command(name, study, whole | changed).startswith("These are only some of the runs of"), changed
    assert "100 of 400 rounds: shortened" in about(study, whole | {"rounds": 100})
    assert "not run: `scaffold`" in about(study, whole | {"runs": fewer})
    for stored, shown in (("1 cores, x86_64", ", 1 core, x86_64,"), ("2 cores, x86_64", ", 2 cores, x86_64,")):
        assert shown in about(study, whole | {"hardware": stored})


def test_runs_that_all_failed_are_not_judged() -> None:
    study, data = STUDIES["fedamd-figures5-7-k20-20"], document.load("fedamd-figures5-7-k10-20", DOCS)
    assert data is not None
    assert {verdict.kind for verdict in verdicts(study, data).values()} != {"not judged"}
    for run in data["runs"].values():
        run["curves"] = [columns | {"accuracy": [0.1] * len(columns["round"])} for columns in run["curves"]]
    assert {verdict.kind for verdict in verdicts(study, data).values()} == {"not judged"}


def test_runs_of_another_study_are_compared_only_if_they_are_as_long() -> None:
    """Fed-EF, Figure 4: 10 against 1 is a larger gap than 4 against 1."""

    def data(symbol: str, largest: float, rounds: int) -> dict:
        curve = {"round": [rounds], "accuracy": [0.5], "objective": [1.0]}
        norms = {20: largest, 40: 1.0, 60: 1.0, 100: 1.0}
        runs = {
            f"{symbol} = {count}": {"seeds": [0], "curves": [curve | {"gradient_norm_squared": [norm]}]}
            for count, norm in norms.items()
        }
        return {"mode": "short", "rounds": rounds, "runs": runs}

    study, gap = STUDIES["fed-ef-figure4-m"], "raising m from 20 to 100"
    (text,) = (text for text in study.claims if text.startswith(gap))
    assert verdicts(study, data("m", 10.0, 40), data("n", 4.0, 40))[text].agrees
    assert verdicts(study, data("m", 4.0, 40), data("n", 10.0, 40))[text].agrees is False
    shorter = verdicts(study, data("m", 10.0, 40), data("n", 4.0, 30))[text]
    assert (shorter.kind, shorter.evidence) == ("not judged", "fed-ef-figure4-n has 30 rounds, not 40")
