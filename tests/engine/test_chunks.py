"""Threads and chunks change the speed, not the results."""

from __future__ import annotations

import pytest

import laconic


@pytest.mark.parametrize("algorithm", ["fed_avg", "scaffold", "fed_cams"])
@pytest.mark.parametrize("model", ["mlp:8", "mlp:5", "logistic"])
def test_no_chunk_changes_a_bit(algorithm: str, model: str) -> None:
    """The rows of these models have a length that is no multiple of 64 bytes, and a client's row depends on the chunk."""
    data = laconic.data.load("digits", clients=8, partition="dirichlet:0.5")
    chosen = getattr(laconic, algorithm)()
    hashes = {
        laconic.simulate(
            chosen, model=model, data=data, rounds=4, participants=5, threads=threads, chunk=chunk
        ).model_sha256
        for threads, chunk in ((1, 1), (2, 2), (2, 3), (2, None))
    }
    assert len(hashes) == 1
