"""The quantities that theorems speak of. Each has one symbol in all formulas, and one option of `laconic theory`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, isnan

from laconic.core.errors import ConfigError


@dataclass(frozen=True)
class Quantity:
    """A number that the user gives."""

    name: str
    symbol: str
    help: str
    kind: type[int] | type[float] = float
    least: float = 0.0
    below: float = inf
    positive: bool = False
    """Whether 0 is refused."""

    @property
    def option(self) -> str:
        """The option of the command line."""
        return f"--{self.name.replace('_', '-')}"

    def check(self, value: float) -> None:
        """Raise a `ConfigError` if the value is out of range."""
        if isnan(value) or not self.least <= value < self.below or (self.positive and value == 0):
            upper = "" if self.below == inf else f" and below {self.below:g}"
            lower = "above 0" if self.positive else f"of at least {self.least:g}"
            raise ConfigError(f"{self.option} {value:g}: a number {lower}{upper} is allowed")


def _count(name: str, symbol: str, help: str, least: int = 1) -> Quantity:
    return Quantity(name, symbol, help, int, least)


def _positive(name: str, symbol: str, help: str, below: float = inf) -> Quantity:
    return Quantity(name, symbol, help, below=below, positive=True)


PROBLEM = "The problem"
FEDERATION = "The federation"
COMPRESSION = "Compression"
OPTIMIZER = "Adaptive server optimizers"
FED_AMD = "FedAMD"
LAZY = "FedBNLACA"
ASKED = "What to compute"

PANELS: dict[str, tuple[Quantity, ...]] = {
    PROBLEM: (
        _positive("smoothness", "L", "L: every client's gradient is L-Lipschitz."),
        Quantity("noise", "sigma", "sigma: the variance of a stochastic gradient is at most sigma^2."),
        Quantity(
            "heterogeneity", "sigma_g", "sigma_g: mean over clients of |grad f_i - grad f|^2 is at most sigma_g^2."
        ),
        _positive("gap", "D", "D: f(w_0) - f*, the initial objective minus its minimum."),
        _positive("gradient_bound", "G", "G: the norm of a stochastic gradient is at most G."),
        _positive("pl_constant", "mu", "mu of the PL condition: |grad f|^2 >= 2 mu (f - f*). Selects theorems for it."),
        Quantity("optimum_norm", "W", "W: |w*|, for a convex objective. Selects theorems for it."),
        Quantity("local_gap", "D_local", "D_local: mean over clients of f_i(w_0) - f_i*."),
        Quantity("local_distance", "R", "R: root of the mean over clients of |w_0 - w_i*|^2."),
        _count("dimension", "d", "d: number of parameters of the model."),
    ),
    FEDERATION: (
        _count("clients", "N", "N: number of clients."),
        _count("participants", "n", "n: clients per round. Default: all."),
        _count("local_steps", "K", "K: local steps per round."),
        _positive("server_lr", "b", "b: learning rate of the server. Default: the corollary's."),
        _positive("local_lr", "a", "a: local learning rate. Default: the allowed rate with the smallest bound."),
    ),
    COMPRESSION: (
        Quantity(
            "compression_error",
            "q",
            "q: |C(x) - x| <= q |x|; sqrt(1 - r) for top_k:r. For Fed-EF the larger of q_C and q_A.",
            below=1,
        ),
        Quantity("quantization_variance", "omega", "omega: E|Q(x) - x|^2 <= omega |x|^2 for an unbiased compressor."),
        Quantity("quantization_gap", "G_q", "G_q of FedCOMGATE's Assumption 5. Default: 0."),
        Quantity("dissimilarity", "gamma", "gamma of FedCAMS's Assumption 4.17, a diagnostic of a run. Default: 0."),
    ),
    OPTIMIZER: (
        Quantity("beta1", "beta1", "Decay of the first moment. Default: the recipe's.", below=1),
        Quantity("beta2", "beta2", "Decay of the second moment. Default: the recipe's.", below=1),
        _positive("optimizer_epsilon", "eps", "eps in the denominator of the step. Default: the recipe's."),
    ),
    FED_AMD: (
        _positive("anchor_probability", "p", "p: probability of being an anchor. Default: the corollary's.", below=1),
        _count("anchor_period", "tau", "tau: every tau-th round has only anchors. Selects sequential theorems.", 2),
        _positive("anchor_batch", "B", "B: batch size of anchors. Default: all local data, without noise."),
        _positive("batch_size", "B_local", "B_local: batch size of miners. Default: 1."),
        Quantity(
            "noise_smoothness", "L_sigma", "L_sigma of Assumption 4.3: smoothness of one example's gradient noise."
        ),
    ),
    LAZY: (
        Quantity("threshold", "h", "h: the threshold C / (alpha n) of skipping or accelerating. Default: 0."),
        Quantity("skip_dissimilarity", "lam", "lambda of Assumption C.1, a diagnostic of a run. Default: 0."),
        _positive("model_bound", "H", "H: the norm of the model is at most H."),
    ),
    ASKED: (
        _count("rounds", "T", "T: compute the bound after T rounds."),
        _positive("epsilon", "epsilon", "Compute the number of rounds until the bound is at most epsilon."),
    ),
}
"""All quantities, in the groups of the help."""
QUANTITIES = {quantity.name: quantity for panel in PANELS.values() for quantity in panel}
BY_SYMBOL = {quantity.symbol: quantity for quantity in QUANTITIES.values()}


def by_symbol(given: Mapping[str, float | None]) -> dict[str, float]:
    """The given numbers by their symbols, checked."""
    values: dict[str, float] = {}
    for name, value in given.items():
        if value is not None:
            QUANTITIES[name].check(value)
            values[QUANTITIES[name].symbol] = value
    if values.get("n", 1) > values.get("N", inf):
        raise ConfigError(f"--participants {values['n']}: at most --clients, {values['N']}, is allowed")
    if values.get("mu", 0) > values.get("L", inf):
        raise ConfigError(f"--pl-constant {values['mu']:g}: at most --smoothness, {values['L']:g}, is allowed")
    return values
