"""Vectors that are not copied: mirrors as mapped rows, large contents in pieces, optimizer steps in blocks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from laconic.algorithms.optimizers.adaptive import AMS, Adagrad, Adam, AMSGrad, Yogi
from laconic.algorithms.optimizers.base import Optimizer
from laconic.core.errors import DataError
from laconic.core.layout import Layout
from laconic.federation import blobs, client_links
from laconic.federation.client_links import ClientLinkState, MappedRows
from laconic.federation.database import Database


def test_rows_share_memory_and_are_reused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_links, "_FILE_BYTES", 256)  # two rows of 100 bytes, aligned to 128, in a file
    rows = MappedRows(25, torch.float32)
    numbers = [rows.new() for _ in range(5)]
    assert len(set(numbers)) == 5
    for number in numbers:
        rows[number] = torch.full((25,), float(number))
    rows[numbers[3]].add_(1)
    assert [rows[number][24].item() for number in numbers] == [number + (number == numbers[3]) for number in numbers]
    rows.free(numbers[1])
    assert rows.new() == numbers[1]


def test_a_state_is_changed_in_place_and_saved_as_a_copy() -> None:
    links = ClientLinkState(Layout.of(torch.nn.Linear(3, 1)))
    links[5] = {"downlink/mirror": torch.ones(4), "uplink/reference": torch.tensor([1], dtype=torch.uint8)}
    saved = links.state_dict()
    mirror = links[5]["downlink/mirror"].add_(1)
    links[5] = {"downlink/mirror": mirror}
    assert links[5]["downlink/mirror"].tolist() == [2.0] * 4 and "uplink/reference" not in links[5]
    assert saved["5/downlink/mirror"].tolist() == [1.0] * 4


def test_large_contents_are_written_and_read_in_pieces(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(blobs, "_PIECE", 1 << 19)
    state = {"large": torch.arange(700_000.0), "small": torch.arange(5), "empty": torch.zeros(0)}
    database = Database(0)
    database.open(tmp_path / "states.sqlite")
    statements: list[str] = []
    assert database._connection is not None
    database._connection.set_trace_callback(statements.append)
    database.put(("client", 1, 1), state)
    assert sum("zeroblob" in statement for statement in statements) == 1
    found = database.get(("client", 1, 1))
    assert found.keys() == state.keys() and all(torch.equal(found[name], value) for name, value in state.items())
    database.execute("UPDATE contents SET content = zeroblob(length(content)) WHERE length(content) > 1000000")
    with pytest.raises(DataError, match="large has changed"):
        database.get(("client", 1, 1))
    database.close()


@pytest.mark.parametrize(
    "optimizer",
    [Adagrad(), Adam(bias_correction=True), Yogi(), AMSGrad(epsilon_inside=True), AMS()],
    ids=lambda optimizer: optimizer.name,
)
def test_a_step_in_blocks_is_the_step_of_each_entry(optimizer: Optimizer) -> None:
    generator = torch.Generator().manual_seed(0)
    means = [torch.randn(70_000, generator=generator) for _ in range(3)]
    parts = [slice(0, 65_536), slice(65_536, 65_540), slice(65_540, 70_000)]
    whole, pieces = optimizer.init(means[0]), [optimizer.init(means[0][part]) for part in parts]
    for mean in means:
        before = mean.clone()
        step, whole = optimizer.step(mean, whole)
        for index, part in enumerate(parts):
            piece, pieces[index] = optimizer.step(mean[part].clone(), pieces[index])
            assert torch.equal(step[part], piece)
        assert torch.equal(mean, before)
