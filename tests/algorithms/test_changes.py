"""Which settings win, at which granularity a link compresses, and that a run's own config means the same algorithm again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import laconic
from laconic.algorithms.algorithm import DEFAULT_SLOTS, Algorithm
from laconic.algorithms.recipes import RECIPES
from laconic.core.errors import ConfigError
from laconic.core.part import SLOTS
from laconic.data import load
from laconic.run.config import RunConfig, load_config
from laconic.run.keys import SHORT_NAMES
from laconic.run.labels import split_label


def built(label: str, **options: object) -> Algorithm:
    """The algorithm of a label and options; two underscores stand for a dot."""
    said = {key.replace("__", "."): value for key, value in options.items()}
    return load_config(None, said, split_label(label)).build_algorithm()


def spelling(algorithm: Algorithm, slot: str = "uplink") -> str:
    return str(algorithm.parts()[slot].compression)


@pytest.mark.parametrize(
    ("label", "wanted"),
    [
        ("fed_ef_sgd:compressor=sign", "sign@layer"),
        ("fed_ef_ams:compressor=top_k:0.1+qsgd:4", "top_k:1/10+qsgd:4@layer"),
        ("fed_com:compressor=qsgd:4", "qsgd:4@layer"),
        ("fed_laconic_1:compressor=sign", "sign@layer"),
        ("fed_ef_sgd:uplink=lazy,compressor=sign", "sign@layer"),
        ("fed_ef_sgd:compressor=sign@model", "sign@model"),
        ("fed_ef_sgd:compressor=qsgd:4,granularity=model", "qsgd:4@model"),
        ("fed_ef_sgd:granularity=chunk:4096", "top_k:1/100@chunk:4096"),
        ("fed_cams:compressor=sign", "sign@model"),
        ("fed_bnlaca:compressor=qsgd:4", "qsgd:4@model"),
        ("fed_cams:compressor=sign@layer", "sign@layer"),
        ("fed_ams:compressor=sign", "sign@model"),
        ("fed_ams:compressor=sign@chunk:100", "sign@chunk:100"),
        # No compressor has a granularity of its own.
        ("fed_cams:compressor=heavy_sign:0.1", "heavy_sign:1/10@model"),
        ("fed_ams:compressor=uniform:4", "uniform:4@model"),
        ("ef21:compressor=sign", "sign@model"),
        ("diana:compressor=uniform:4", "uniform:4@layer"),
    ],
)
def test_a_compressor_has_the_granularity_of_its_link(label: str, wanted: str) -> None:
    assert spelling(built(label)) == wanted
    settings = split_label(label)
    assert spelling(laconic.algorithms.recipes.make(settings.pop("algorithm"), **settings)) == wanted, "as in Python"


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("compressor", ["sign", "heavy_sign:0.1", "uniform:8", "qsgd:4", "top_k:0.1+qsgd:4"])
def test_nothing_is_inherited_from_the_compressor_that_stood_there_before(recipe: str, compressor: str) -> None:
    own = RECIPES[recipe]().uplink.parameters().get("granularity", "model")
    twice = RECIPES[recipe](compressor="top_k:0.1", memory=False).replace(compressor=compressor)
    assert spelling(twice) == f"{laconic.parse_compressor(compressor)}@{own}"


def test_a_granularity_that_is_said_twice_must_be_the_same() -> None:
    assert laconic.Compressed("sign@layer", granularity="layer") == laconic.Compressed("sign", "layer")
    with pytest.raises(ConfigError, match="contradict"):
        laconic.Compressed("sign@layer", granularity="model")
    with pytest.raises(ConfigError, match="granularity = 'each': allowed are model, layer and chunk:N"):
        laconic.fed_cams(granularity="each")


def test_the_downlink_has_a_granularity_of_its_own_and_a_compressor_changes_the_uplink_alone() -> None:
    both = built("fed_laconic_1:downlink.compressor=sign")
    assert spelling(both, "downlink") == "sign@layer"
    assert spelling(both) == "heavy_sign:1/16@layer"
    assert spelling(built("fed_bnlaca:compressor=sign"), "downlink") == "top_k:1/64@model"
    # A downlink where there was none takes compressor and granularity of the uplink where it is not given its own.
    two_way = built("fed_ef_ams:downlink=broadcast,downlink.compressor=top_k:0.1")
    assert spelling(two_way, "downlink") == "top_k:1/10@layer"
    assert spelling(built("fed_ef_ams:compressor=sign,downlink=broadcast"), "downlink") == "sign@layer"


@pytest.mark.parametrize(
    ("python", "label"),
    [
        (lambda: laconic.fed_sgd(uplink="compressed", compressor="sign"), "fed_sgd:uplink=compressed,compressor=sign"),
        (lambda: laconic.fed_sgd(uplink="error_feedback", compressor="sign"), "fed_sgd:compressor=sign"),
        (lambda: laconic.fed_cams(memory=False), "fed_cams:memory=false"),
        (lambda: laconic.fed_cams(uplink="compressed"), "fed_cams:uplink=compressed"),
        (lambda: laconic.fed_com(memory=True), "fed_com:uplink=error_feedback"),
        (
            lambda: laconic.fed_ams(uplink="lazy", compressor="sign", threshold=0.5),
            "fed_nlaa:compressor=sign,threshold=0.5",
        ),
        (lambda: laconic.fed_ams(compressor="sign", restart_after=3), "fed_ams:restart_after=3,compressor=sign"),
        (lambda: laconic.fed_avg(memory=True), "fed_avg:memory=true"),
    ],
)
def test_python_and_labels_take_the_same_words(python: Callable[[], Algorithm], label: str) -> None:
    assert python().parts() == built(label).parts()


def test_parameters_that_several_parts_have_belong_to_the_same_slot_in_a_config() -> None:
    assert {word: SHORT_NAMES[word] for word in DEFAULT_SLOTS} == {
        word: f"{slot}.{word}" for word, slot in DEFAULT_SLOTS.items()
    }


def test_names_of_the_compressed_uplink() -> None:
    plain, feedback = laconic.Compressed("sign"), laconic.Compressed("sign", memory=True)
    assert laconic.fed_sgd(uplink="compressed", compressor="sign").uplink == plain
    assert laconic.fed_sgd(uplink="error_feedback", compressor="sign").uplink == feedback
    assert laconic.fed_sgd(compressor="sign").uplink == feedback
    said = {"name": "compressed", "memory": True, "compressor": "sign"}
    assert laconic.fed_sgd(uplink=said).uplink == feedback, "what is said wins over a name"


@pytest.mark.parametrize("recipe", ["ef21", "diana", "marina"])
def test_methods_with_a_state_of_their_own_refuse_uplinks_whose_state_they_would_ignore(recipe: str) -> None:
    for uplink, refused in (
        *(("lazy", "'lazy'"), ("accelerated", "'accelerated'")),
        ("error_feedback", "'compressed' with memory"),
    ):
        algorithm = laconic.algorithms.recipes.make(recipe, uplink=uplink)
        with pytest.raises(
            ConfigError, match=f"^method '{recipe}' cannot use uplink {refused}: .*; use uplink = 'comp"
        ):
            algorithm.resolve()
    laconic.algorithms.recipes.make(recipe, uplink="dense").resolve()


def test_a_compressors_parameter_of_the_same_name_as_a_links() -> None:
    @laconic.compressor("thresholded", argument="threshold")
    class Thresholded(laconic.Compressor):
        threshold: float = 0.7
        scale: float = 1.0

        def compress(self, x, rng):
            return laconic.Signs(x < 0, self.scale)

    assert (
        built("fed_nlaca:compressor=sign,threshold=0").uplink
        == laconic.fed_nlaca(compressor="sign", threshold=0).uplink
    )
    assert built("fed_cams:compressor=thresholded,threshold=0.5").uplink.compressor == Thresholded(threshold=0.5)
    own = built("fed_nlaca:compressor=thresholded:0.5,scale=2,uplink.threshold=0").uplink
    assert own.compressor == Thresholded(0.5, 2.0) and own.threshold == 0
    for label in (
        "fed_nlaca:compressor=thresholded,threshold=0",
        "fed_cams:uplink=lazy,compressor=thresholded,threshold=0",
    ):
        with pytest.raises(ConfigError, match="both the compressor and the uplink have 'threshold'"):
            built(label)


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


def test_memory_and_the_uplinks_name_may_be_said_in_different_layers(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('algorithm = "fed_com"\n[uplink]\nname = "compressed"\ncompressor = "uniform:8@layer"\n')
    assert load_config(file, {}).build_algorithm().uplink == laconic.fed_com().uplink
    assert load_config(file, {"memory": True}).build_algorithm().uplink == laconic.fed_com(memory=True).uplink
    assert load_config(file, {"uplink": "error_feedback"}).build_algorithm().uplink.has_memory
    file.write_text('algorithm = "fed_cams"\nmemory = false\n')
    assert load_config(file, {}).build_algorithm() == laconic.fed_cams(memory=False)
    assert load_config(file, {"uplink.name": "error_feedback"}).build_algorithm() == laconic.fed_cams()


@pytest.mark.parametrize(
    ("before", "after"), [("fed_cams", "fed_com"), ("fed_com", "fed_cams"), ("fed_cams", "fed_ams")]
)
def test_another_algorithm_than_the_files_brings_its_own_uplink(before: str, after: str, tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    config = RunConfig(algorithm=before, uplink=RECIPES[before]().uplink.table())
    file.write_text(config.to_toml())
    assert load_config(file, {"algorithm": after}).build_algorithm() == RECIPES[after]()


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
    uplink = built(recipe, memory=False, compressor="uniform:1@layer").uplink
    assert uplink == laconic.Compressed("uniform:1@layer")


def test_a_file_may_name_a_part_as_an_option_does(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('algorithm = "fed_ef_ams"\ndownlink = "broadcast"\n')
    assert load_config(file, {}).build_algorithm() == laconic.fed_ef_ams(downlink="broadcast")


def test_every_part_that_has_a_name_is_exported() -> None:
    parts = {cls.__name__ for slot in SLOTS.values() for cls in slot.values()}
    assert parts <= set(laconic.__all__)
    assert all(hasattr(laconic, name) for name in laconic.__all__)


def test_a_name_stays_only_while_the_parts_are_its_own() -> None:
    assert laconic.scaffold(local_lr=0.1, local_steps=3).title == "scaffold"
    own = laconic.scaffold(method={"name": "own_training", "function": "operator:add"})
    assert own.title == "scaffold (method own_training)"
    assert laconic.fed_avg().replace(optimizer="ams", downlink="broadcast", compressor="sign").title == (
        "fed_avg (uplink compressed sign, optimizer ams, downlink broadcast sign)"
    )
    assert laconic.fed_cams(compressor=laconic.fed_cams().uplink.compressor).title == "fed_cams"
    assert laconic.fed_cams(memory=False).title == "fed_cams (without memory)"
    assert laconic.fed_cams(memory=True).title == "fed_cams"
    assert laconic.fed_cams(uplink="dense").title == "fed_cams (uplink dense, without memory)"


def test_a_compressor_of_ones_own_is_in_the_labels_of_a_comparison() -> None:
    @laconic.compressor("rounded", argument="step")
    class Rounded(laconic.Compressor):
        step: float = 0.1
        shift: int = 0

        def compress(self, x: np.ndarray, rng: np.random.Generator) -> laconic.Levels:
            return laconic.Levels(np.round(x / self.step), scale=self.step)

    algorithms = [laconic.fed_cams, *(laconic.fed_cams(compressor=own) for own in (Rounded(), Rounded(0.25, 2)))]
    table = laconic.compare(algorithms, "logistic", "digits", rounds=1, participants=2).table()
    assert {row[1] for row in table.rows} == {
        *("fed_cams", "fed_cams (uplink compressed rounded:1/10)", "fed_cams (uplink compressed rounded:1/4,shift=2)")
    }
