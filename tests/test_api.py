"""The Python interface says the same things as the command line, and takes the same spellings."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
import torch

import laconic
from laconic.report.gather import find_runs, gather
from laconic.report.page import report as write_report
from laconic.run.config import load_config
from laconic.run.records import troubles

SMALL = {"participants": 3, "rounds": 2, "threads": 1, "numerics": {"strategy": "loop"}}


@pytest.mark.parametrize("recipe", ["fed_ams", "fed_avg", "fed_bnlaca", "fed_ef_sgd"])
def test_a_compressor_is_the_uplinks_as_on_the_command_line(recipe: str) -> None:
    here = getattr(laconic, recipe)(compressor="sign")
    there = load_config(None, {"algorithm": recipe, "compressor": "sign"}).build_algorithm()
    assert here == there
    assert here.uplink.compressor == laconic.Sign()
    assert here.uplink.granularity == ("layer" if recipe == "fed_ef_sgd" else "model")


def test_simulate_takes_labels() -> None:
    spelled = laconic.simulate("fed_cams:compressor=sign,local_steps=2", "logistic", "digits", **SMALL)
    made = laconic.simulate(laconic.fed_cams(compressor="sign", local_steps=2), "logistic", "digits", **SMALL)
    assert spelled.model_sha256 == made.model_sha256
    shorter = laconic.simulate("fed_avg:rounds=1,local_steps=2", "logistic", "digits", **SMALL)
    assert len(shorter.history) == 1


@pytest.mark.parametrize(
    ("label", "said"),
    [
        ("fed_avg:model=mlp", "model"),
        ("fed_agv", "fed_avg"),
        ("fed_avg:local_rate=1", "local_rate"),
        ("fed_avg:compressor", "key=value"),
    ],
)
def test_a_wrong_label_says_so(label: str, said: str) -> None:
    with pytest.raises(laconic.ConfigError, match=said):
        laconic.simulate(label, "logistic", "digits", **SMALL)


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"probability": 2}, "'optimal'"),
        ({"probability": "most"}, "'optimal'"),
        ({"anchor_batch": "half"}, "'full'"),
        ({"anchor_batch": 0}, "'full'"),
        ({"probability": 0.5, "period": 2}, "only one of the two"),
    ],
)
def test_what_fed_amd_allows_is_said(parameters: dict, said: str) -> None:
    with pytest.raises(laconic.ConfigError, match=said):
        laconic.fed_amd(**parameters)


@laconic.part("optimizer", "step_of_one")
class StepOfOne(laconic.Optimizer):
    """An author's optimizer without a schedule."""

    server_lr: float = 1.0
    pull: float = 0.5

    def init(self, model):
        return {}

    def step(self, mean, state):
        return self.server_lr * self.pull * mean, state


@pytest.mark.parametrize("optimizer", ["step_of_one", StepOfOne()])
def test_a_parameter_of_the_part_that_was_replaced_is_unknown_to_the_new_one(optimizer: object) -> None:
    said = r"^unknown parameter 'server_schedule' of optimizer 'step_of_one': .*allowed: pull, server_lr$"
    with pytest.raises(laconic.ConfigError, match=said):
        laconic.fed_avg(optimizer=optimizer, server_schedule="cosine:10")


def test_parameters_of_a_part_that_replaces_another_are_suggested_and_used() -> None:
    with pytest.raises(laconic.ConfigError, match=r"unknown parameter 'pulls' of fed_avg: did you mean 'pull'\?"):
        laconic.fed_avg(optimizer="step_of_one", pulls=1.0)
    half, whole = (
        laconic.simulate("fed_avg", "logistic", "digits", optimizer="step_of_one", pull=pull, **SMALL)
        for pull in (0.5, 1.0)
    )
    assert half.history != whole.history


@pytest.mark.parametrize(
    ("wrong", "meant"), [("resum", "resume"), ("outt", "out"), ("callbak", "callbacks"), ("optimiser", "optimizer")]
)
def test_a_misspelled_keyword_of_simulate_is_recognized(wrong: str, meant: str) -> None:
    with pytest.raises(laconic.ConfigError, match=rf"unknown setting '{wrong}': did you mean '{meant}'\?") as caught:
        laconic.simulate("fed_avg", "logistic", "digits", **SMALL, **{wrong: 1})
    assert {"callbacks", "on_round", "out", "progress", "resume", "uplink"} <= set(
        str(caught.value).replace(",", "").split()
    )


def test_a_misspelled_keyword_of_compare_is_recognized() -> None:
    with pytest.raises(laconic.ConfigError, match="unknown setting 'rankby': did you mean 'rank_by'"):
        laconic.compare(["fed_avg"], "logistic", "digits", **SMALL, rankby="time")


def test_a_part_without_parameters_says_that_it_has_none() -> None:
    with pytest.raises(laconic.ConfigError, match="it has none"):
        laconic.DenseDownlink().replace(ratio=1)


@pytest.mark.parametrize("text", ["30", "30s", 30, "30000ms"])
def test_a_deadline_may_have_a_unit(text: object) -> None:
    config = load_config(None, {"deadline": text, "bandwidth_up": "1Mbit"})
    assert config.network.deadline == 30
    with pytest.raises(laconic.ConfigError, match="30s"):
        load_config(None, {"deadline": "soon", "bandwidth_up": "1Mbit"})


def test_a_simulation_leaves_the_directory_of_a_run(tmp_path: Path) -> None:
    label = "fed_cams:compressor=sign"
    result = laconic.simulate(label, "logistic", "digits", out=tmp_path / "mine", eval_every=1, **SMALL)
    assert [json.loads(line) for line in (tmp_path / "mine/metrics.jsonl").read_text().splitlines()] == result.history
    # Names can be run again, to the same model.
    config = load_config(tmp_path / "mine/config.toml")
    again = config.build()
    assert again.result([*again.rounds()]).model_sha256 == result.model_sha256
    again.close()
    with pytest.raises(laconic.ConfigError, match="exists already"):
        laconic.simulate(label, "logistic", "digits", out=tmp_path / "mine", **SMALL)
    data = laconic.data.load("digits", clients=5, partition="dirichlet:0.3")
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    seen: list[int] = []
    laconic.simulate(
        laconic.fed_avg(), module, data, out=tmp_path / "own", on_round=lambda each: seen.append(each["round"]), **SMALL
    )
    assert seen == [1, 2]
    write_report([tmp_path], tmp_path / "report.html")
    found = gather(find_runs([tmp_path]))["runs"]
    assert [(run["rounds"], run["finished"], run["settings"]["model"]) for run in found] == [
        (2, True, "logistic"),
        (2, True, "Sequential"),
    ]
    with pytest.raises(laconic.ConfigError, match="partition"):
        load_config(tmp_path / "own/config.toml").load_data()


def test_troubles_are_counted_over_the_run() -> None:
    network = {"bandwidth_up": "lognormal:10kbit,2", "deadline": 2}
    result = laconic.simulate("fed_avg", "logistic", "digits", **SMALL, network=network, faults={"late": 0.3})
    counted = troubles(result.history)
    assert counted["cut_off"] == sum(record.get("cut_off", 0) for record in result.history) > 0


def test_ctrl_c_stops_what_follows_also_in_the_last_round_of_a_run(tmp_path: Path, capsys) -> None:
    def interrupt(record: dict[str, object]) -> None:
        if record["round"] == 2:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt, match="stopped after round 2; saved in"):
        laconic.simulate("fed_avg", "logistic", "digits", out=tmp_path / "mine", on_round=interrupt, **SMALL)
    assert "finishing this round, then saving" in capsys.readouterr().err
    assert (tmp_path / "mine" / "model.safetensors").exists(), "its last round was over"
    with pytest.raises(KeyboardInterrupt, match="stopped after round 2"):
        settings = SMALL | {"rounds": 3}
        laconic.simulate("fed_avg", "logistic", "digits", out=tmp_path / "other", on_round=interrupt, **settings)
    assert not (tmp_path / "other" / "model.safetensors").exists()


class Stop(laconic.Callback):
    """Kills a run, as far as it can tell, in the middle of its second round."""

    def on_round_end(self, run, record) -> None:
        if record["round"] == 2:
            raise RuntimeError("power failure")


def own(shift: float = 0.0, count: int = 3) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [
        (torch.randn(8, 4, generator=generator) + shift, torch.randint(0, 2, (8,), generator=generator))
        for _ in range(count)
    ]


def frozen(value: float = 1.0, activation: type[torch.nn.Module] = torch.nn.ReLU) -> torch.nn.Module:
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), activation(), torch.nn.Linear(4, 2))
    torch.nn.init.constant_(module[0].weight, value)
    torch.nn.init.zeros_(module[0].bias)
    module[0].requires_grad_(False)
    return module


def lazily(clients: list) -> list:
    class Noisy(torch.utils.data.Dataset):
        def __init__(self, pair) -> None:
            self.pair = pair

        def __len__(self) -> int:
            return len(self.pair[0])

        def __getitem__(self, position: int):
            return self.pair[0][position] + 0.1 * torch.randn(4), self.pair[1][position]

    return [Noisy(pair) for pair in clients]


RESUMED = {"rounds": 4, "seed": 1, "local_steps": 2, "threads": 1}


@pytest.mark.parametrize("wrap", [list, lazily], ids=["arrays", "lazy"])
@pytest.mark.parametrize("algorithm", [laconic.fed_cams(compressor="sign"), laconic.scaffold])
def test_a_run_with_own_data_and_module_is_resumed_bit_for_bit(tmp_path: Path, algorithm, wrap) -> None:
    torch.manual_seed(0)
    module = frozen()
    whole = laconic.simulate(algorithm, module, wrap(own()), **RESUMED)
    with pytest.raises(RuntimeError, match="power failure"):
        laconic.simulate(algorithm, module, wrap(own()), out=tmp_path / "run", callbacks=[Stop()], **RESUMED)
    for _ in range(2):  # the second time it is complete already
        resumed = laconic.simulate(algorithm, module, wrap(own()), out=tmp_path / "run", resume=True, **RESUMED)
        assert resumed.model_sha256 == whole.model_sha256
        assert [record["round"] for record in resumed.history] == [1, 2, 3, 4]
    longer = laconic.simulate(
        algorithm, module, wrap(own()), out=tmp_path / "run", resume=True, **RESUMED | {"rounds": 5}
    )
    expected = laconic.simulate(algorithm, module, wrap(own()), **RESUMED | {"rounds": 5})
    assert longer.model_sha256 == expected.model_sha256


def test_a_run_is_not_resumed_with_anything_else(tmp_path: Path) -> None:
    def run(algorithm="fed_avg", model=None, data=None, **settings) -> laconic.Result:
        directory = {"out": tmp_path / "run", "resume": True}
        return laconic.simulate(algorithm, model or frozen(), data or own(), **directory, **RESUMED | settings)

    first = run()
    stored = (tmp_path / "run/metrics.jsonl").read_bytes()
    for changes, said in (
        ({"algorithm": "fed_cams"}, "algorithm = 'fed_cams', but the run in"),
        ({"local_lr": 0.5}, "method.local_lr = 0.5"),
        ({"seed": 2}, "seed = 2, but"),
        ({"rounds": 3}, "already has 4 rounds"),
        ({"data": own(shift=1.0)}, "the data differs"),
        ({"data": own(count=2)}, "clients = 2"),
        ({"model": frozen(2.0)}, "the model .its layers, frozen parameters or loss. differs"),
        ({"model": frozen(activation=torch.nn.Tanh)}, "the model .its layers, frozen parameters or loss. differs"),
        ({"model": torch.nn.Sequential(torch.nn.Linear(4, 2))}, "the model differs"),
    ):
        with pytest.raises(laconic.ConfigError, match=said):
            run(**changes)
    assert (tmp_path / "run/metrics.jsonl").read_bytes() == stored and run().model_sha256 == first.model_sha256
    with pytest.raises(laconic.ConfigError, match="resume: name the run's directory"):
        laconic.simulate("fed_avg", frozen(), own(), resume=True)


def test_a_function_may_build_a_task_whose_weights_depend_on_the_seed() -> None:
    inputs = torch.eye(4)
    clients = [(inputs, torch.tensor([0, 1, 0, 1]))]

    def task() -> laconic.Task:
        return laconic.classification(torch.nn.Linear(4, 2))

    def hashed(model, seed: int) -> str:
        return laconic.simulate("fed_avg", model, clients, rounds=1, seed=seed).model_sha256

    assert hashed(task, 1) == hashed(lambda: torch.nn.Linear(4, 2), 1) != hashed(task, 2)
    for wrong in (lambda: 3, 3):
        with pytest.raises(laconic.ConfigError, match=r"model: a torch.nn.Module or a Task is needed, not int"):
            hashed(wrong, 1)
