"""Every method with links and optimizers of other papers: it runs, and it learns.

tests/algorithms/test_method_conservation.py shows that the states of both sides agree with these links, whatever is lost.
"""

from __future__ import annotations

import pytest

import laconic
from laconic.algorithms.recipes import make

METHODS = {
    "fed_avg": {},
    "fed_prox": {},
    "fed_gate": {},
    "scaffold": {},
    "fed_amd": {"probability": 0.5, "local_lr": 0.05},
    "bvr_l_sgd": {},
    "fed_page": {"probability": 0.3},
    "minibatch_sgd": {},
    "ef21": {},
    "diana": {},
    "marina": {},
    "scafcom": {"compressor": "top_k:1/8"},
    "fed_dyn": {},
}
ONE_STEP = ("minibatch_sgd", "ef21", "diana", "marina")
"""Their rounds are a single step each, so there are more of them."""
PLAIN = {"ef21": None, "scafcom": None, "diana": "qsgd:4@layer", "marina": "qsgd:4@layer"}
"""They refuse uplinks with a memory or a reference, and so have its compressor alone, or a quantizer for a biased one."""
COMPANY = {
    "error feedback of signs": {"uplink": laconic.Compressed("sign", memory=True)},
    "lazy": {"uplink": laconic.Lazy("top_k:1/8", memory=True, threshold=0.5)},
    "ams": {"optimizer": laconic.AMS(server_lr=0.02)},
    "all of them": {
        "uplink": laconic.Lazy("sign", memory=True, threshold=0.5),
        "optimizer": laconic.AMS(server_lr=0.02),
        "downlink": laconic.Mirrored("top_k:1/4"),
    },
}


@pytest.fixture(scope="module")
def digits() -> laconic.data.ClientData:
    return laconic.data.load("digits", clients=10, partition="dirichlet:0.5", seed=0)


@pytest.mark.parametrize("company", [*list(COMPANY)[:3], pytest.param("all of them", marks=pytest.mark.long)])
@pytest.mark.parametrize("method", METHODS)
def test_it_learns(method: str, company: str, digits: laconic.data.ClientData) -> None:
    parts = dict(COMPANY[company])
    if method in PLAIN and "uplink" in parts:
        parts["uplink"] = laconic.Compressed(PLAIN[method] or str(parts["uplink"].compression))
    algorithm = make(method, **METHODS[method]).replace(**parts)
    rounds = 100 if method in ONE_STEP else 25
    result = laconic.simulate(algorithm, "mlp:32", digits, participants=5, rounds=rounds, eval_every=rounds)
    assert result.history[-1]["accuracy"] > 0.6


@pytest.mark.parametrize(("method", "stream"), [("fed_amd", "down/anchor"), ("scaffold", "down/control")])
def test_the_mean_that_goes_down_beside_the_model_can_be_compressed(
    method: str, stream: str, digits: laconic.data.ClientData
) -> None:
    results = {}
    for compressor in (None, "qsgd:8"):
        algorithm = make(method, **METHODS[method]).replace(mean_compressor=compressor)
        results[compressor] = laconic.simulate(algorithm, "mlp:32", digits, participants=5, rounds=25, eval_every=25)
    dense, small = (results[each].ledger.streams[stream] for each in (None, "qsgd:8"))
    assert dense.packets == small.packets > 10
    assert small.bytes < 0.3 * dense.bytes
    assert small.paper_bits < 0.3 * dense.paper_bits
    assert abs(results[None].history[-1]["accuracy"] - results["qsgd:8"].history[-1]["accuracy"]) < 0.05
