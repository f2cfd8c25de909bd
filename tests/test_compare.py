"""`laconic.compare`: the same runs as `simulate`, ranked, as a table, a data frame and a report."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch
from torch import nn

import laconic
from laconic.core.errors import ConfigError

SMALL = {"rounds": 2, "participants": 3, "threads": 1, "eval_every": 1, "numerics": {"strategy": "loop"}}
DIVERGING = laconic.fed_avg(local_lr=1e38, server_lr=1e30)


def clients() -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [(torch.randn(8, 4, generator=generator), torch.randint(0, 2, (8,), generator=generator)) for _ in range(3)]


def test_runs_equal_those_of_simulate_and_the_best_comes_first() -> None:
    contenders = {"slow": laconic.fed_avg(local_lr=1e-4), "signs": "fed_cams:compressor=sign", "fast": laconic.fed_avg}
    comparison = laconic.compare(contenders, "logistic", "digits", local_steps=2, **SMALL)
    for label, algorithm in contenders.items():
        alone = laconic.simulate(algorithm, "logistic", "digits", local_steps=2, **SMALL)
        assert comparison[label].model_sha256 == alone.model_sha256
    accuracies = {label: comparison[label].accuracy for label in contenders}
    expected = sorted(contenders, key=lambda label: -accuracies[label])
    assert [row[1] for row in comparison.table().rows] == expected
    with pytest.raises(ConfigError, match="unknown run 'fsat': did you mean 'fast'"):
        comparison["fsat"]


def test_what_an_algorithm_sets_takes_precedence_over_keywords() -> None:
    def used(algorithms: dict, key: str, slot: str = "method", **settings) -> list:
        comparison = laconic.compare(algorithms, nn.Linear(4, 2), clients(), **settings, **SMALL | {"rounds": 1})
        return [getattr(getattr(comparison[label].algorithm, slot), key) for label in algorithms]

    rates = {"slow": laconic.fed_avg(local_lr=0.01), "fast": laconic.fed_avg(local_lr=0.5), "default": laconic.fed_avg}
    assert used(rates, "local_lr", local_lr=0.1) == [0.01, 0.5, 0.1]
    assert used(rates, "local_lr", method={"local_lr": 0.1}) == [0.01, 0.5, 0.1]
    labels = {label: label for label in ("fed_avg:local_lr=0.5", "fed_avg:method.local_lr=0.5", "fed_avg")}
    assert used(labels, "local_lr", local_lr=0.1) == [0.5, 0.5, 0.1]
    optimizers = {"sgd": laconic.fed_avg, "adamw": laconic.fed_avg(local_lr=0.001, local_optimizer="adamw")}
    assert list(map(str, used(optimizers, "local_optimizer", local_optimizer="momentum"))) == ["momentum", "adamw"]


def test_precedence_of_parts_and_of_parameters_that_follow_from_others() -> None:
    def made(algorithm, **settings) -> laconic.Algorithm:
        return laconic.simulate(algorithm, nn.Linear(4, 2), clients(), **settings, **SMALL | {"rounds": 1}).algorithm

    signs = laconic.fed_avg(compressor="sign")
    assert str(made(signs, compressor="top_k:1/4").uplink.compressor) == "sign"
    assert not made(signs, memory=False).uplink.has_memory, "memory follows from the compressor; nobody set it"
    assert made(laconic.fed_avg(optimizer="ams"), optimizer="adam").optimizer.name == "ams"
    assert made(laconic.fed_avg(optimizer="ams"), server_lr=0.3).optimizer.server_lr == 0.3
    own = laconic.Algorithm(laconic.fed_avg().method.replace(local_lr=0.5))
    assert made(own, local_lr=0.1, local_steps=2).method.local_lr == 0.5
    assert made(own, optimizer="ams").optimizer.name == "ams", "nobody has filled this slot"
    assert made(own, optimizer={"name": "ams", "server_lr": 0.01}).optimizer.server_lr == 0.01
    assert not made(own, uplink="compressed", compressor="sign").uplink.has_memory
    assert (
        made(laconic.Algorithm(own.method, optimizer=laconic.SGD(server_lr=0.5)), server_lr=0.1).optimizer.server_lr
        == 0.5
    )


def test_the_table_is_shown_in_terminals_and_notebooks_and_says_what_diverged() -> None:
    net = nn.Linear(4, 2)
    before = net.weight.clone()
    comparison = laconic.compare({"<b>": laconic.fed_avg, "bad": DIVERGING}, net, clients(), **SMALL)
    text, html = repr(comparison), comparison._repr_html_()
    assert "<b>" in text and "bytes up" in text and "bad: the model is not finite" in text
    assert "<td>&lt;b&gt;</td>" in html and "<b>" not in html and "training has diverged" in html
    assert torch.equal(net.weight, before), "the model that was passed is not trained"
    with pytest.raises(ConfigError, match="bad: the model is not finite"):
        comparison["bad"]


def test_several_seeds_give_mean_and_spread() -> None:
    pytest.importorskip("pandas", reason="the extra `tables` is not installed")
    comparison = laconic.compare(["fed_avg"], "logistic", "digits", seeds=2, seed=5, local_steps=2, **SMALL)
    results = [laconic.simulate("fed_avg", "logistic", "digits", seed=seed, local_steps=2, **SMALL) for seed in (5, 6)]
    frame = comparison.to_pandas()
    assert frame["seed"].tolist() == [5, 6] and frame.index.tolist() == ["fed_avg"] * 2
    assert frame["model_sha256"].tolist() == [result.model_sha256 for result in results]
    first, second = (100 * result.accuracy for result in results)
    spread = abs(first - second) / 2**0.5
    assert f"{(first + second) / 2:.2f} ± {spread:.2f} %" in repr(comparison)
    assert "mean ± standard deviation over 2 seeds" in repr(comparison)


def test_a_data_frame_has_all_metrics_and_the_errors() -> None:
    pytest.importorskip("pandas", reason="the extra `tables` is not installed")
    task = laconic.Task(
        nn.Linear(4, 2),
        lambda module, batch: nn.functional.cross_entropy(module(batch[0]), batch[1]),
        metrics={"ones": lambda outputs, targets: outputs.argmax(-1).float().mean()},
    )
    data = {"clients": clients(), "test": clients()[0]}
    frame = laconic.compare({"good": laconic.fed_avg, "bad": DIVERGING}, task, data, **SMALL).to_pandas()
    assert 0 <= frame.loc["good", "ones"] <= 1
    assert "diverged" in frame.loc["bad", "error"] and frame["bytes_up"].isna().tolist() == [False, True]


def test_a_report_has_the_labels(tmp_path: Path) -> None:
    laconic.compare({"mine": laconic.fed_avg, "bad": DIVERGING}, nn.Linear(4, 2), clients(), **SMALL).report(
        tmp_path / "page.html"
    )
    page = (tmp_path / "page.html").read_text()
    assert '"label":"mine"' in page and '"group":"mine"' in page


def test_a_target_ranks_by_costs() -> None:
    contenders = {"dense": laconic.fed_avg, "small": "fed_avg:compressor=top_k:1/4,memory=true"}
    settings = SMALL | {"rounds": 8}
    comparison = laconic.compare(contenders, "logistic", "digits", target=0.3, **settings)
    assert [row[1] for row in comparison.table().rows] == ["small", "dense"]
    few = laconic.compare(["fed_avg"], "logistic", "digits", target=0.3, **SMALL | {"rounds": 2})
    assert (
        "a target needs at least 5 evaluations: run more rounds, or evaluate more often (eval_every)"
        in few.table().captions
    )
    for wrong, said in (({"rank_by": "rounds"}, "target"), ({"rank_by": "money"}, "unknown ranking")):
        with pytest.raises(ConfigError, match=said):
            laconic.compare(contenders, "logistic", "digits", **wrong, **SMALL)
    with pytest.raises(ConfigError, match="describe the network"):
        laconic.compare(contenders, "logistic", "digits", rank_by="time", target=0.3, **SMALL)


def test_algorithms_without_labels_have_their_titles() -> None:
    comparison = laconic.compare([laconic.fed_avg, laconic.fed_cams()], nn.Linear(4, 2), clients(), **SMALL)
    assert {row[1] for row in comparison.table().rows} == {"fed_avg", "fed_cams"}


def test_a_target_needs_an_accuracy() -> None:
    def loss(module, batch):
        return nn.functional.cross_entropy(module(batch[0]), batch[1])

    task, data = laconic.Task(nn.Linear(4, 2), loss), {"clients": clients(), "test": clients()[0]}
    for model, given in ((task, data), (nn.Linear(4, 2), clients())):
        with pytest.raises(ConfigError, match=r"target = 0.9: it is an accuracy on test examples, .* only: loss"):
            laconic.compare(["fed_avg"], model, given, target=0.9, **SMALL)


def test_the_table_has_the_requested_metrics() -> None:
    torch.manual_seed(0)
    data = {"clients": clients(), "test": clients()[0]}
    comparison = laconic.compare(["fed_avg"], nn.Linear(4, 2), data, metrics="f1,auroc,class_accuracy", **SMALL)
    table = comparison.table()
    assert table.columns[1:5] == ["accuracy", "loss", "f1", "auroc"] and table.columns[5] == "bytes up"
    assert table.rows[0][4] == f"{comparison['fed_avg'].metrics['auroc']:.4f}"
    assert "f1" in comparison.table(62).columns and "auroc" not in comparison.table(62).columns, "a narrow table"
    assert comparison.summaries()[0]["auroc"] == comparison["fed_avg"].metrics["auroc"]
    values = [(inputs, targets.float() + inputs[:, 0]) for inputs, targets in clients()]
    values = {"clients": values, "test": values[0]}
    columns = laconic.compare(["fed_avg"], nn.Linear(4, 1), values, metrics="r2", **SMALL).table().columns
    assert columns[1:4] == ["loss", "absolute_error", "r2"], "there is no accuracy"


def test_an_interrupted_comparison_continues(tmp_path: Path) -> None:
    class Interrupt(laconic.Callback):
        def on_round_end(self, run, record) -> None:
            if run.label == "b" and record["round"] == 1:
                os.kill(os.getpid(), signal.SIGINT)

    def compare(**more) -> laconic.Comparison:
        contenders = {"a": laconic.fed_avg, "b": laconic.fed_cams}
        return laconic.compare(contenders, lambda: nn.Linear(4, 2), clients(), **SMALL, **more)

    with pytest.raises(KeyboardInterrupt, match="stopped after round 1; saved in"):
        compare(out=tmp_path / "two", callbacks=[Interrupt()])
    with pytest.raises(ConfigError, match="exists already"):
        compare(out=tmp_path / "two")
    resumed, whole = compare(out=tmp_path / "two", resume=True), compare()
    for label in "ab":
        assert resumed[label].model_sha256 == whole[label].model_sha256
        assert len(resumed[label].history) == 2


@pytest.mark.parametrize(
    ("algorithms", "settings", "said"),
    [
        ({}, {}, "at least one algorithm"),
        ({"a": "fed_avg"}, {"seeds": 0}, "seeds = 0"),
        ({"a b": "fed_avg", "a_b": "fed_avg"}, {}, "'a b' and 'a_b'"),
        ({"a": "fed_avg"}, {"resume": True}, "name the folder"),
        (["fed_avg", "fed_avg"], {}, "'fed_avg' is named twice; pass a dict"),
        ([laconic.fed_avg, laconic.fed_avg(local_lr=0.1)], {}, "'fed_avg' is named twice; pass a dict"),
        ([3], {}, "algorithm: a recipe such as laconic.fed_avg, or its name, is needed, not int"),
        (
            ["fed_avg", "fed_prox"],
            {"callbacks": [laconic.SaveBest("loss", "best.safetensors")]},
            "SaveBest: path = 'best.safetensors': 2 runs would write it; leave path out",
        ),
        (["fed_avg"], {"target": 95}, "target = 95: a fraction between 0 and 1"),
        # Every run is checked before the first one starts.
        ({"a": "fed_avg", "b": "fed_agv"}, {}, "did you mean 'fed_avg'"),
    ],
)
def test_what_cannot_be_compared_is_said_before_any_run(algorithms: dict, settings: dict, said: str) -> None:
    started: list[str] = []

    class Started(laconic.Callback):
        def on_run_start(self, run) -> None:
            started.append(run.label)

    with pytest.raises(ConfigError, match=said):
        hooks = [Started(), *settings.pop("callbacks", [])]
        laconic.compare(algorithms, "logistic", "digits", callbacks=hooks, **settings, **SMALL)
    assert started == []
