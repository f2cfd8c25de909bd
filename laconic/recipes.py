"""Every named algorithm: a function of a few lines that fills the four slots and cites its paper.

Parameters of the parts are given by name: `fed_ams(local_lr=0.1, server_lr=0.03, beta2=0.9)`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from laconic.algorithm import Algorithm
from laconic.client.local_sgd import LocalSGD
from laconic.errors import unknown_name
from laconic.server.optimizers import AMS, SGD, Adagrad, Adam, AMSGrad, Yogi

Recipe = Callable[..., Algorithm]
RECIPES: dict[str, Recipe] = {}


def _recipe(function: Recipe) -> Recipe:
    RECIPES[function.__name__] = function
    return function


def make(name: str, **parameters: Any) -> Algorithm:
    """The recipe of that name; a misspelt one fails with a suggestion."""
    if name not in RECIPES:
        raise unknown_name("algorithm", name, RECIPES)
    return RECIPES[name](**parameters)


@_recipe
def fed_avg(**parameters: Any) -> Algorithm:
    """Federated averaging: w += b mean(u). McMahan et al., AISTATS 2017, Algorithm 1."""
    return Algorithm(LocalSGD(), optimizer=SGD(), name="fed_avg").replace(**parameters)


@_recipe
def fed_sgd(**parameters: Any) -> Algorithm:
    """FedAvg under the name that Fed-EF gives to its uncompressed baseline. Li and Li, ICML 2023, Algorithm 1."""
    return Algorithm(LocalSGD(), optimizer=SGD(), name="fed_sgd").replace(**parameters)


@_recipe
def fed_adagrad(**parameters: Any) -> Algorithm:
    """Server Adagrad: v += y^2. Reddi et al., ICLR 2021, Algorithm 2."""
    return Algorithm(LocalSGD(), optimizer=Adagrad(), name="fed_adagrad").replace(**parameters)


@_recipe
def fed_adam(**parameters: Any) -> Algorithm:
    """Server Adam: v = b2 v + (1 - b2) y^2. Reddi et al., ICLR 2021, Algorithm 2."""
    return Algorithm(LocalSGD(), optimizer=Adam(), name="fed_adam").replace(**parameters)


@_recipe
def fed_yogi(**parameters: Any) -> Algorithm:
    """Server Yogi: v -= (1 - b2) sign(v - y^2) y^2. Reddi et al., ICLR 2021, Algorithm 2."""
    return Algorithm(LocalSGD(), optimizer=Yogi(), name="fed_yogi").replace(**parameters)


@_recipe
def fed_amsgrad(**parameters: Any) -> Algorithm:
    """Server AMSGrad: vhat = max(vhat, v), eps outside the root. Wang et al., ICML 2022, Algorithm 1, option 2."""
    return Algorithm(LocalSGD(), optimizer=AMSGrad(), name="fed_amsgrad").replace(**parameters)


@_recipe
def fed_ams(**parameters: Any) -> Algorithm:
    """FedAMS, max stabilisation: vhat = max(vhat, v, eps). Wang et al., ICML 2022, Algorithm 1, option 1."""
    return Algorithm(LocalSGD(), optimizer=AMS(), name="fed_ams").replace(**parameters)
