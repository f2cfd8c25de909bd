"""What we claim ourselves: bytes to the accuracy of full precision."""

from __future__ import annotations

from laconic.reproduce.claims import Claim
from laconic.reproduce.experiments import BYTES
from laconic.reproduce.measures import FINAL, LAST_FIVE, MEGABYTES, Measure, both, reached
from laconic.reproduce.study import Reproduction, Short, Study

_USUAL, _BEST = (
    Measure(f"MB, both ways, to {100 * goal:.2f} %", lambda curve, goal=goal: _megabytes(curve, goal))  # type: ignore[misc]
    for goal in (0.7640, 0.8109)
)


def _megabytes(curve: list[dict[str, float]], goal: float) -> float | None:
    found = reached(curve, goal)
    return None if found is None else both(found) / 1e6


BYTES_TO_ACCURACY = Reproduction(
    "Bytes to one point below full precision: our own combination of parts",
    "Laconic. The goals are one point below what fed_ams has in rounds 160 to 200, at its usual and at its best rate, where "
    "fed_ams is charged its 200 rounds, 1422 MB",
    {
        "bytes-to-accuracy": Study(
            "Fashion-MNIST, LeNet-5, 20 of 100 clients with two shards each",
            BYTES,
            measures=(_USUAL, _BEST, FINAL, LAST_FIVE, MEGABYTES),
            claims=(
                Claim(
                    "fed_laconic needs at most a fiftieth of fed_ams's 1422 MB at the usual rate",
                    _USUAL,
                    "less",
                    ("fed_laconic",),
                    28.4,
                ),
                Claim("and at most a fortieth where fed_ams has its best rate", _BEST, "less", ("fed_laconic",), 35.6),
                Claim(
                    "two-way Fed-EF and FedBNLACA at the usual rates need more",
                    _USUAL,
                    "more",
                    ("fed_ef_ams-two-way", "fed_bnlaca-same-rates"),
                    ("fed_laconic",),
                ),
            ),
            against="bytes",
            short=Short(labels=("fed_ams", "fed_ams-rate-0.1", "fed_laconic")),
            quick=("fed_ams", "fed_laconic", "fed_ef_ams-two-way"),
        )
    },
)
