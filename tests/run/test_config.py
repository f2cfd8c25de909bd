"""Configs: what options, labels and files make of a recipe's parts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import laconic
from laconic.algorithms.algorithm import Algorithm
from laconic.core.errors import ConfigError, DataError
from laconic.core.part import find_part
from laconic.run import files
from laconic.run.config import RunConfig, load_config
from laconic.run.labels import split_label
from laconic.run.resume import with_changes


def built(algorithm: str, file: Path | None = None, **options: object) -> Algorithm:
    """The algorithm of a label and options; two underscores stand for a dot."""
    said = {key.replace("__", "."): value for key, value in options.items()}
    return load_config(file, said, split_label(algorithm)).build_algorithm()


def test_lazy_becomes_accelerated_with_all_that_both_have() -> None:
    switched = built("fed_nlaca", uplink__name="accelerated")
    assert switched.uplink == laconic.fed_aca().uplink
    assert switched.uplink.parameters()["memory"] is True
    options = {"uplink__threshold": 0.5, "uplink__restart_after": 3, "compressor": "sign"}
    switched = built("fed_nlaca", uplink__name="accelerated", **options)
    assert switched.uplink == built("fed_aca", **options).uplink
    back = built("fed_aca", uplink__name="lazy", **options)
    assert back.uplink == built("fed_nlaca", **options).uplink


def test_error_feedback_becomes_lazy_with_memory_and_restart() -> None:
    assert built("fed_cams", uplink__name="lazy").uplink == laconic.fed_nlaca().uplink
    uplink = built("fed_cams", uplink__name="lazy", uplink__restart_after=4).uplink.parameters()
    assert uplink["memory"] is True and uplink["restart_after"] == 4


def test_a_switched_method_does_not_take_the_memory_of_a_link() -> None:
    algorithm = built("fed_cams", method__name=laconic.fed_gate().method.name)
    assert algorithm.method == laconic.fed_gate().method


def test_a_compressor_for_a_lazy_uplink_comes_with_memory_unless_it_is_not_wanted() -> None:
    options = {"compressor": "sign", "uplink__name": "lazy"}
    assert built("fed_ams", **options).uplink.parameters()["memory"] is True
    assert built("fed_ams", **options, memory=False).uplink.parameters()["memory"] is False
    assert built("fed_ams", uplink__name="lazy").uplink == laconic.fed_nlaa().uplink


@pytest.mark.parametrize("recipe", ["fed_avg", "fed_cams", "fed_com", "fed_nlaa", "fed_nlaca", "fed_baca"])
def test_memory_is_the_recipes_unless_it_is_said(recipe: str) -> None:
    assert built(recipe) == built(recipe, memory=None) == getattr(laconic, recipe)()


def test_memory_on_and_off() -> None:
    com, cams = laconic.fed_com().uplink, laconic.fed_cams().uplink
    assert built("fed_com", memory=True).uplink == laconic.Compressed(com.compressor, com.granularity, memory=True)
    assert built("fed_com", memory=False).uplink == com
    assert built("fed_cams", memory=True).uplink == cams
    assert built("fed_cams", memory=False).uplink == laconic.Compressed(cams.parameters()["compressor"])
    assert built("fed_nlaca", memory=False).uplink.parameters()["memory"] is False
    assert not built("fed_ams", memory=True).uplink.has_memory


def test_a_label_may_name_a_downlink_before_and_after_its_settings() -> None:
    before = built("fed_cams:downlink.compressor=sign@layer,downlink=mirrored").downlink
    after = built("fed_cams:downlink=mirrored,downlink.compressor=sign@layer").downlink
    assert before == after == laconic.Mirrored("sign@layer")


def test_an_option_names_the_part_of_a_files_table(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('algorithm = "fed_cams"\n[downlink]\ncompressor = "sign@layer"\n')
    assert built("fed_cams", file, downlink="broadcast").downlink == laconic.Broadcast("sign@layer")
    file.write_text(
        'algorithm = "fed_cams"\n[downlink]\nname = "mirrored"\ncompressor = "sign@layer"\nthreshold = 0.5\n'
    )
    assert built("fed_cams", file, downlink="broadcast").downlink == laconic.Broadcast("sign@layer")
    assert built("fed_cams", file, downlink="dense").downlink == laconic.DenseDownlink()
    assert built("fed_cams", file, downlink="mirrored").downlink == laconic.Mirrored("sign@layer", threshold=0.5)


@pytest.mark.parametrize(
    ("label", "compressor", "server_lr"),
    [
        ("fed_cams:compressor=qsgd:4,norm=max", "qsgd:4,norm=max", 0.03),
        ("fed_cams:compressor=qsgd:4,norm=max,server_lr=0.5", "qsgd:4,norm=max", 0.5),
        ("fed_cams:server_lr=0.5,uplink.compressor=top_k:0.1,coding=rice+qsgd:4,norm=l2@layer", None, 0.5),
    ],
)
def test_a_compressors_settings_may_stand_in_a_label(label: str, compressor: str | None, server_lr: float) -> None:
    algorithm = built(label)
    wanted = laconic.Compressed(compressor or "top_k:0.1,coding=rice+qsgd:4,norm=l2@layer", memory=True)
    assert algorithm.uplink == wanted
    assert algorithm.optimizer.parameters()["server_lr"] == server_lr


def test_a_misspelled_key_after_a_compressor_is_a_misspelled_key() -> None:
    with pytest.raises(ConfigError, match="did you mean 'server_lr'"):
        built("fed_cams:compressor=sign,server_lrr=0.5")


def test_a_parameter_that_two_parts_have_must_say_whose() -> None:
    with pytest.raises(ConfigError, match=r"uplink and downlink .*write uplink\.threshold or downlink\.threshold"):
        built("fed_bnlaca:threshold=0.5")


def test_a_link_that_needs_a_compressor_says_how_to_give_one() -> None:
    with pytest.raises(ConfigError, match=r"'broadcast' needs a compressor: .*--compressor.*downlink\.compressor"):
        built("fed_ams", downlink="broadcast")
    assert built("fed_ams", downlink="broadcast", compressor="sign").downlink == laconic.Broadcast("sign")


def test_parts_by_name_in_python() -> None:
    two_way = laconic.fed_ef_ams(downlink="broadcast")
    assert two_way.downlink == laconic.Broadcast(two_way.uplink.compressor, granularity="layer")
    table = {"name": "mirrored", "compressor": "sign@layer", "threshold": 0.5}
    assert laconic.fed_ef_ams(downlink=table).downlink == laconic.Mirrored("sign@layer", threshold=0.5)
    with pytest.raises(ConfigError, match="did you mean 'broadcast'"):
        laconic.fed_ef_ams(downlink="broadcst")
    with pytest.raises(ConfigError, match="downlink = 3: must be a part, the name of a part, or a table"):
        laconic.fed_ef_ams(downlink=3)


def test_interfaces_of_own_parts_are_exported() -> None:
    assert {"Encoded", "Received", "Run", "RoundContext"} <= set(laconic.__all__)


def test_optimizers_are_exported() -> None:
    wanted = {"SGD", "Adagrad", "Adam", "Yogi", "AMSGrad", "AMS"}
    assert wanted <= set(laconic.__all__)
    assert laconic.fed_avg(optimizer=laconic.Yogi(server_lr=0.5)).optimizer.server_lr == 0.5


def test_a_checkpoint_of_another_format_is_refused_in_one_line(tmp_path) -> None:
    file = tmp_path / "checkpoint.safetensors"
    files.save_tensors(file, {"x": torch.zeros(2)}, {"round": 1})
    assert files.load_tensors(file)[1] == {"round": 1}
    content = file.read_bytes()
    assert rb"\"format\": 4" in content
    file.write_bytes(content.replace(rb"\"format\": 4", rb"\"format\": 3"))
    with pytest.raises(DataError, match="has checkpoint format 3; this version of Laconic reads format 4"):
        files.load_tensors(file)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"subspace": 50}, "subspace = 50: must be less than 1"),
        ({"subspace_every": 3}, "subspace_every = 3: needs subspace, such as 1/10"),
        ({"numerics": {"vmap_width": 0}}, "numerics.vmap_width = 0: must be greater than or equal to 1"),
        ({"ray": {"workers": 3}}, "ray.workers = 3: only with engine = 'ray'"),
    ],
)
def test_settings_alone_refuse_in_one_line(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        laconic.Settings(**settings)
    assert str(raised.value) == message


@pytest.mark.parametrize("parameters", [{"clip_norm": None, "noise_limit": None}, {"local_epochs": 2}], ids=str)
def test_a_run_with_a_parameter_unset_is_resumed_without_it(tmp_path: Path, parameters: dict[str, object]) -> None:
    """TOML has no null: a value that only the recipe sets must not come back."""
    algorithm = laconic.fed_laconic(**parameters)
    laconic.simulate(algorithm, "mlp:8", "digits", rounds=1, participants=2, out=tmp_path / "run")
    assert load_config(tmp_path / "run" / "config.toml", {}).build_algorithm() == algorithm.resolve()


def test_none_unsets_a_parameter_on_the_command_line() -> None:
    algorithm = load_config(None, {"algorithm": "fed_laconic", "clip_norm": "none"}).build_algorithm()
    assert algorithm == laconic.fed_laconic(clip_norm=None)
    with pytest.raises(ConfigError, match=r"method\.local_lr = 'none': must be a valid number"):
        laconic.fed_laconic(local_lr="none")


@laconic.part("optimizer", "capped_for_configs")
class Capped(laconic.SGD):
    """An optimizer of one's own, with a parameter that is set by default."""

    cap: float | None = 2.0


def test_a_parameter_that_is_set_by_default_stays_unset_in_files_and_on_nodes(tmp_path: Path) -> None:
    algorithm = laconic.fed_avg().replace(optimizer=Capped(cap=None))
    laconic.simulate(algorithm, "mlp:8", "digits", rounds=1, participants=2, out=tmp_path / "run")
    assert load_config(tmp_path / "run" / "config.toml", {}).build_algorithm() == algorithm.resolve()
    table = algorithm.optimizer.table()  # a node of a federation builds the part from this
    assert find_part("optimizer", table.pop("name"))(**table) == algorithm.optimizer


def test_a_run_is_resumed_with_none_for_a_parameter_that_is_not_set(tmp_path: Path) -> None:
    laconic.simulate("fed_avg", "mlp:8", "digits", rounds=1, participants=2, out=tmp_path / "run")
    stored = RunConfig.model_validate(load_config(tmp_path / "run" / "config.toml").model_dump())
    assert with_changes(load_config(None, {"clip_norm": "none"}), stored, tmp_path / "run") == stored
    with pytest.raises(ConfigError, match=r"method\.local_lr = None, but .* was started with method\.local_lr = 0\.05"):
        with_changes(load_config(None, {"local_lr": "none"}), stored, tmp_path / "run")
