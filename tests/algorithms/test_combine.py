"""Which settings win, which groups a compressor gets, and that a run's own config means the same algorithm again."""

from __future__ import annotations

from pathlib import Path

import pytest

import laconic
from laconic.algorithms.algorithm import Algorithm
from laconic.core.part import SLOTS
from laconic.data import load
from laconic.run.config import RunConfig, load_config
from laconic.run.labels import split_label


def built(label: str, **options: object) -> Algorithm:
    """The algorithm of a label and options; two underscores stand for a dot."""
    said = {key.replace("__", "."): value for key, value in options.items()}
    return load_config(None, said, split_label(label)).build_algorithm()


def spelling(algorithm: Algorithm, slot: str = "uplink") -> str:
    compressor = algorithm.parts()[slot].parameters()["compressor"]
    return f"{compressor}".partition("@")[0] + f"@{compressor.by}"


@pytest.mark.parametrize(
    ("label", "wanted"),
    [
        ("fed_ef_sgd:compressor=sign", "sign@layer"),
        ("fed_ef_ams:compressor=top_k:0.1+qsgd:4", "top_k:1/10+qsgd:4@layer"),
        ("fed_com:compressor=qsgd:4", "qsgd:4@layer"),
        ("fed_laconic:compressor=sign", "sign@layer"),
        ("fed_ef_sgd:uplink=lazy,compressor=sign", "sign@layer"),
        ("fed_ef_sgd:compressor=sign@model", "sign@model"),
        ("fed_ef_sgd:compressor=qsgd:4,by=model", "qsgd:4@model"),
        ("fed_cams:compressor=sign", "sign@model"),
        ("fed_bnlaca:compressor=qsgd:4", "qsgd:4@model"),
        ("fed_cams:compressor=sign@layer", "sign@layer"),
        ("fed_ams:compressor=sign", "sign@model"),
        # By layer of itself, and so in any recipe.
        ("fed_cams:compressor=heavy_sign:0.1", "heavy_sign:1/10@layer"),
        ("fed_ams:compressor=heavy_sign:0.1", "heavy_sign:1/10@layer"),
    ],
)
def test_a_compressor_that_does_not_say_its_groups_has_those_of_the_recipe(label: str, wanted: str) -> None:
    assert spelling(built(label)) == wanted
    name, _, rest = label.partition(":compressor=")
    if rest:
        assert spelling(laconic.algorithms.recipes.make(name, uplink={"compressor": rest})) == wanted, (
            "the same in Python"
        )


def test_the_downlink_has_groups_of_its_own_and_a_compressor_changes_the_uplink_alone() -> None:
    both = built("fed_laconic:downlink.compressor=sign")
    assert spelling(both, "downlink") == "sign@layer"
    assert spelling(both) == "heavy_sign:1/16@layer"
    assert spelling(built("fed_bnlaca:compressor=sign"), "downlink") == "top_k:1/64@model"
    # A downlink where there was none is by layer if the uplink is, and takes its compressor if it has none.
    two_way = built("fed_ef_ams:downlink=broadcast,downlink.compressor=top_k:0.1")
    assert spelling(two_way, "downlink") == "top_k:1/10@layer"
    assert spelling(built("fed_ef_ams:compressor=sign,downlink=broadcast"), "downlink") == "sign@layer"


@pytest.mark.parametrize(
    "label",
    [
        "fed_ef_sgd:compressor=sign@model",
        "fed_ef_sgd:compressor=sign",
        "fed_laconic:compressor=top_k:0.1@model,downlink.compressor=qsgd:5@model",
        "fed_cams:uplink=accelerated,compressor=heavy_sign:0.1@model",
        "fed_com:memory=true",
        "fed_cams:memory=false",
        "fed_nlaa:compressor=sign",
        "fed_nlaa",
        "fed_ams:uplink=lazy,compressor=sign,memory=false",
        "fed_bnlaca:downlink=broadcast",
        "fed_gate:compressor=dense",
    ],
)
def test_the_config_that_a_run_keeps_means_the_same_algorithm(label: str, tmp_path: Path) -> None:
    options = {"model": "logistic", "strategy": "loop", "threads": 1}
    config = load_config(None, options, split_label(label))
    simulation = config.build(load("digits", clients=4))
    file = tmp_path / "config.toml"
    file.write_text(config.resolved(simulation).to_toml())
    simulation.close()
    assert load_config(file, {}).build_algorithm().parts() == simulation.algorithm.parts()


def test_a_config_of_before_memory_could_be_left_open_keeps_its_uplink(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('algorithm = "fed_com"\nmemory = true\n[uplink]\nname = "compressed"\ncompressor = "uniform:8"\n')
    assert load_config(file, {}).build_algorithm().uplink == laconic.fed_com().uplink
    assert load_config(file, {"memory": True}).build_algorithm().uplink == laconic.ErrorFeedback("uniform:8")
    file.write_text('algorithm = "fed_nlaa"\nmemory = true\n[uplink]\nname = "lazy"\nmemory = false\n')
    assert load_config(file, {}).build_algorithm().uplink == laconic.fed_nlaa().uplink


def test_a_label_wins_over_what_all_have_in_common_however_it_is_written() -> None:
    # As on the command line, where an option that was not given is there too.
    shared = {"server_lr": None, "downlink": None, "local_steps": None, "local_epochs": 2, "optimizer__server_lr": 0.1}
    assert built("fed_ams:server_lr=0.5", **shared).optimizer.server_lr == 0.5
    assert built("fed_ams:optimizer.server_lr=0.5", server_lr=0.1).optimizer.server_lr == 0.5
    work = built("fed_ams:local_steps=3", **shared).method.parameters()
    assert (work["local_steps"], work["local_epochs"]) == (3, None)
    other = built("fed_cams:downlink=mirrored", **shared, downlink__name="broadcast")
    assert other.downlink == laconic.Mirrored("top_k:1/64")


def test_settings_of_a_part_that_is_named_beside_them_need_no_more_than_their_own_name() -> None:
    assert built("fed_ams:compressor=sign,downlink=mirrored,threshold=0.5").downlink == laconic.Mirrored(
        "sign", threshold=0.5
    )
    assert built("fed_cams:uplink=lazy,threshold=0.5").uplink == laconic.fed_nlaca(threshold=0.5).uplink


def test_a_compressor_where_everything_was_sent_is_remembered() -> None:
    assert built("fed_nlaa:compressor=top_k:1/64").uplink == laconic.fed_nlaca().uplink
    assert built("fed_nlaa:compressor=dense").uplink == laconic.fed_nlaa().uplink
    assert built("fed_aa:uplink.compressor=sign,uplink.memory=false").uplink == laconic.Accelerated("sign")
    assert built("fed_com:uplink=lazy").uplink.parameters()["memory"] is False, "fed_com has no memory to keep"


@pytest.mark.parametrize("recipe", ["fed_cams", "fed_avg", "fed_com"])
def test_without_memory_any_compressor_may_be_named(recipe: str) -> None:
    config = RunConfig(algorithm=recipe, memory=False, uplink={"compressor": "uniform:1"})
    assert config.build_algorithm().uplink == laconic.Compressed("uniform:1@layer")


def test_a_file_may_name_a_part_as_an_option_does(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('algorithm = "fed_ef_ams"\ndownlink = "broadcast"\n')
    assert load_config(file, {}).build_algorithm() == laconic.fed_ef_ams(downlink="broadcast")


def test_every_part_that_has_a_name_is_exported() -> None:
    found = (cls for slot in SLOTS.values() for cls in slot.values())
    # Other tests register parts of their own.
    parts = {cls.__name__ for cls in found if cls.__module__.startswith("laconic.")}
    assert parts <= set(laconic.__all__)
    assert all(hasattr(laconic, name) for name in laconic.__all__)
