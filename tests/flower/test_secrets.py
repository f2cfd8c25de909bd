"""What nodes must not know: the noise, the number of participants, and the signs of the direction filter."""

from __future__ import annotations

import shutil

import pytest
import torch

import laconic
from laconic.federation.direction import SIZE
from laconic.run.files import load_tensors

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from flwr.app import Message

from laconic.flower import wire
from tests.flower.small_federation import PowerCut, federation, run


def test_noise_and_participants_are_a_secret_of_the_server(tmp_path):
    private = {"participants": 2, "sampling": "poisson", "clip_updates": 0.5, "dp_noise": 1.0, "eval_every": 1}

    def begun(folder: str, stop: int | None = None) -> laconic.Result | None:
        grid = federation(tmp_path / folder)

        def cut(messages: list[Message]) -> None:
            if messages[0].metadata.group_id == str(stop):
                raise PowerCut

        grid.before_push = cut
        try:
            return run(grid, tmp_path / folder, "fed_avg", **private | {"participants": 3})
        except PowerCut:
            return None

    one, two = begun("one"), begun("two")
    assert one is not None
    assert two is not None
    assert one.model_sha256 != two.model_sha256
    epsilons = [record["epsilon"] for record in one.history]
    assert 0 < epsilons[0] < epsilons[1] < epsilons[2]
    # The secret outlives the server: what a crash undoes is done again, bit for bit.
    assert begun("three", stop=2) is None
    shutil.copytree(tmp_path / "three", tmp_path / "four")
    third, fourth = begun("three"), begun("four")
    assert third is not None
    assert fourth is not None
    assert third.model_sha256 == fourth.model_sha256


@pytest.mark.parametrize(
    ("model", "space", "rounds"),
    [("logistic", {}, 2), ("mlp:64", {"subspace": 0.25, "subspace_every": 3}, 4)],
    ids=["whole", "in the second of two subspaces"],
)
def test_the_signs_of_the_direction_filter_are_a_secret_of_the_server(tmp_path, model, space, rounds):
    """A client that knows them can deceive the filter. They outlive the server, since it keeps projections."""

    def kept(folder: str, rounds: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The projections of each client's last update and its model, and the weights of the run."""
        grid = federation(tmp_path / folder, model=model)
        result = run(grid, tmp_path / folder, "fed_avg", model, rounds=rounds, **space)
        tensors, _ = load_tensors(tmp_path / folder / "run" / "checkpoint.safetensors")
        (rows,) = [value for name, value in tensors.items() if name.endswith("directions/train/rows")]
        return rows[:, -SIZE:], laconic.Layout.of(result.model).flatten(result.model)

    (one, first), (two, second) = kept("one", rounds), kept("two", rounds)
    assert torch.equal(first, second)
    assert not torch.equal(one, two)
    shutil.copytree(tmp_path / "one", tmp_path / "three")
    (one, first), (three, _), (two, second) = (kept(folder, rounds + 1) for folder in ("one", "three", "two"))
    assert torch.equal(first, second)
    assert torch.equal(one, three), "a restarted server has the same signs"
    assert not torch.equal(one, two)
    assert one.any() and two.any()


def test_nodes_are_told_how_many_are_expected_not_how_many_were_drawn(tmp_path):
    grid, told = federation(tmp_path), []

    def read(messages: list[Message]) -> None:
        records = [message.content.config_records[wire.RECORD] for message in messages]
        told.extend(record["invited"] for record in records if "invited" in record)

    grid.before_push = read
    run(grid, tmp_path, "fed_avg", participants=2, sampling="poisson", clip_updates=0.5, dp_noise=1.0)
    assert set(told) <= {2}


def test_with_noise_no_client_pushes_another_out_of_the_sum(tmp_path):
    with pytest.raises(
        laconic.ConfigError, match=r"quorum = 0\.5 is not allowed: a fast client would push another one"
    ):
        run(federation(tmp_path), tmp_path, "fed_avg", clip_updates=0.5, dp_noise=1.0, quorum=0.5)
