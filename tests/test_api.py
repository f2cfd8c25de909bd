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
from laconic.run.training import troubles

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
