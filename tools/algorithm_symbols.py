"""The meanings of the symbols in the formulas of docs/algorithms. Each page lists the symbols that it uses."""

# ruff: noqa: RUF001 (the formulas contain Greek letters that look like Latin ones)

from __future__ import annotations

import re
from dataclasses import dataclass

THRESHOLD = (
    "`uplink.threshold`. If it is unset, c = √(α ln N)/(α n N) for n of N clients and α = `uplink.alpha`. This c is so "
    "small that the condition is hardly ever true"
)


@dataclass(frozen=True)
class Symbol:
    """A symbol, its meaning, and the recipes in which it has this meaning (all recipes if empty)."""

    spelled: str
    meaning: str
    recipes: tuple[str, ...] = ()


EF21 = ("ef21", "ef21_sgdm", "ef21_p", "ef21_bc")
CONTROLLED = ("scallion", "scafcom")
RECURSIVE = ("bvr_l_sgd", "fed_page")
SYMBOLS = (
    Symbol("w", "the model that clients have; the server keeps a copy", ("ef21_p",)),
    Symbol("w", "the server's model"),
    Symbol("w⁻", "the model at which g was last estimated: the model of the last round with replies"),
    Symbol("W", "a client's model during local training"),
    Symbol("W⁻", "W one step earlier"),
    Symbol("N", "the number of clients"),
    Symbol("K", "the number of local steps (`local_steps`)", CONTROLLED),
    Symbol(
        "K", "the number of local steps: `local_steps`, or the steps in `local_epochs` passes over the client's data"
    ),
    Symbol("t", "the round number, starting at 0"),
    Symbol("a", "the local learning rate (`local_lr`)"),
    Symbol("b", "the server's learning rate: `server_lr` (1) times `optimizer.stretch` (2)", ("fed_laconic",)),
    Symbol("b", "the server's learning rate (`server_lr`)"),
    Symbol("f", "the loss"),
    Symbol("fᵢ", "client i's loss over its data, or over a batch of `batch_size`", EF21),
    Symbol("fᵢ", "client i's loss over its data, or over a batch of `anchor_batch`", ("marina",)),
    Symbol("g", "the gradient estimate that the steps follow", ("fed_amd",)),
    Symbol("g", "the estimate of the gradient that server and clients keep, 0 at first", ("ef21_bc",)),
    Symbol("g", "the server's estimate of the gradient", (*EF21, *RECURSIVE, "marina")),
    Symbol("d", "a client's estimate of the gradient, which its steps follow", RECURSIVE),
    Symbol("g", "the gradient on a batch"),
    Symbol("gᵢ", "the estimate of client i's gradient that client and server keep, 0 at first", EF21),
    Symbol("gᵢ", "the mean of client i's gradients in its local steps", CONTROLLED),
    Symbol("gᵢ", "client i's gradient at w", ("diana",)),
    Symbol("gᵢ", "client i's estimate of its gradient at w", ("vr_diana",)),
    Symbol("fᵢ", "client i's loss", ("vr_diana",)),
    Symbol("zᵢ", "the model at which client i last computed its gradient over all its data", ("vr_diana",)),
    Symbol("zᵢ", "the model that client i has; the server keeps a copy of each"),
    Symbol("μᵢ", "client i's gradient at zᵢ over all its data"),
    Symbol("cᵢ", "what client i sends", EF21),
    Symbol("cᵢ", "client i's control variate, 0 at first", ("scaffold", *CONTROLLED)),
    Symbol("dᵢ", "what client i sends, as the server decodes it"),
    Symbol("d", "what the server sends"),
    Symbol("cᵢ⁺", "client i's control variate after the round", ("scaffold",)),
    Symbol("c", "the mean of cᵢ over all clients", ("scaffold", *CONTROLLED)),
    Symbol("c", THRESHOLD),
    Symbol("h", "the mean of hᵢ over all clients"),
    Symbol("hᵢ", "the linear term of client i's loss, 0 at first; it converges to the client's gradient", ("fed_dyn",)),
    Symbol("hᵢ", "client i's shift, which client and server keep, 0 at first"),
    Symbol("Δᵢ", "what client i sends"),
    Symbol(
        "α",
        "the rate of the shifts (`method.alpha`). If it is unset, α = 1/(1 + ω), where ω is the relative variance of "
        "the compressor: E‖Q(x) − x‖² ≤ ω ‖x‖²",
        ("diana", "vr_diana"),
    ),
    Symbol("α", "`method.alpha`, the weight of a new gradient", ("scallion",)),
    Symbol("α", "`method.alpha`, the weight of the regularizer", ("fed_dyn",)),
    Symbol("J", "the number of local steps in this round, the same for all clients"),
    Symbol("Tᵢ", "client i's tracker, 0 at first"),
    Symbol("β", "`uplink.memory_decay`", ("sparse_loco",)),
    Symbol(
        "β",
        "`method.tracker_rate`. If it is unset: with an error memory, k/d for compressors "
        "that keep k of d entries exactly, such as `top_k`, and 0.1 for others; "
        "without a memory, 1 / (1 + ω) for a sparse unbiased compressor with the relative variance ω, and 1 for others",
    ),
    Symbol("u", "a client's update: the model after local training minus the model before"),
    Symbol("e", "the client's error memory, 0 at first"),
    Symbol("x", "the exact model, without compression errors of the downlink", ("ef21_p",)),
    Symbol("x", "what the client would send without compression"),
    Symbol("φ", "the server's error memory, 0 at first"),
    Symbol("s", "the server's step before it is shortened", ("fed_laconic",)),
    Symbol("s", "what the server would send without compression"),
    Symbol("H", "what the server sends"),
    Symbol("C", "the downlink's compressor; C(x) is also what the client decodes", ("fed_laconic",)),
    Symbol("Q", "the uplink's compressor; Q(x) is also what the server decodes", ("fed_laconic",)),
    Symbol("C", "the compressor; C(x) is also what the other side decodes"),
    Symbol("Q", "the compressor; Q(x) is also what the other side decodes"),
    Symbol("E", "the expectation over the compressor's random draws"),
    Symbol("qᵢ", "client i's update as the server decodes it"),
    Symbol("q", "the mean of qᵢ over the participants"),
    Symbol(
        "y",
        "what the server decodes",
        ("fed_aa", "fed_aca", "fed_baca", "stc", "qsparse_local_sgd", "sparse_loco", "fed_cams_two_way", "flasc"),
    ),
    Symbol(
        "y", "what the server decodes if the client sends it", ("fed_nlaa", "fed_nlaca", "fed_bnlaca", "fed_laconic_1")
    ),
    Symbol("y", "the mean of Q(u) over the participants", ("fed_laconic",)),
    Symbol("y", "the mean of what the participants send"),
    Symbol("ȳ", "the mean of y over the participants", ("stc", "fed_cams_two_way", "flasc")),
    Symbol("ȳ", "the mean over the participants of what the server used"),
    Symbol("r", "the sum of a client's local rates in the round", ("fed_laconic",)),
    Symbol("r", "`method.momentum_rate`", ("scafcom", "ef21_sgdm")),
    Symbol("r", "the last vector that this client sent; before its first one, the condition is false"),
    Symbol("m", "the first moment, 0 at first"),
    Symbol("v", "the anchor's new gradient", ("fed_amd",)),
    Symbol("v", "the second moment, 0 at first; squares, roots and quotients are elementwise"),
    Symbol("v̂", "the largest v so far"),
    Symbol("vᵢ", "the gradient that client i keeps", ("fed_amd",)),
    Symbol(
        "vᵢ",
        "client i's moving average of its gradients; it starts as the client's first gradient",
        ("scafcom", "ef21_sgdm"),
    ),
    Symbol("v̄", "the mean of vᵢ over all clients"),
    Symbol("β₁", "`optimizer.beta1`"),
    Symbol("β₂", "`optimizer.beta2`"),
    Symbol("ε", "`optimizer.epsilon`"),
    Symbol("p", "the velocity, 0 at first", ("diloco",)),
    Symbol("μ", "`optimizer.momentum`", ("diloco",)),
    Symbol("μ", "`method.proximal`"),
    Symbol("p", "`method.probability`"),
)
_WORD = re.compile(r"[^\W\d_]+[\u0300-\u036f]?[⁺⁻]?")
_LETTER = re.compile(r"[^\W\d_][ᵢ₁₂]?[\u0300-\u036f]?[⁺⁻]?")


def symbols(recipe: str, formula: str) -> str:
    """Return the table of symbols for a page. A symbol without a meaning is an error."""
    used = {word for word in _WORD.findall(formula.replace("Σ", " ").replace("'s", "")) if _LETTER.fullmatch(word)}
    known: dict[str, str] = {}
    for symbol in SYMBOLS:
        if symbol.spelled in used and (not symbol.recipes or recipe in symbol.recipes):
            known.setdefault(symbol.spelled, symbol.meaning)
    if unknown := used - known.keys():
        raise SystemExit(
            f"{recipe}: the formula has {', '.join(sorted(unknown))}, without a meaning in tools/algorithm_symbols.py"
        )
    rows = [f"| {spelled} | {meaning} |" for spelled, meaning in known.items()]
    return "\n".join(["| symbol | what it is |", "|---|---|", *rows])
