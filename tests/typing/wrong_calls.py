"""Calls that a type checker must reject, each on a line of its own; test_typing.py runs mypy on them."""

from __future__ import annotations

import laconic
from laconic.flower import server_app


def calls() -> None:
    laconic.fed_cams(compresor="sign")
    laconic.fed_cams(memory="no")
    laconic.fed_avg(local_steps="ten")
    laconic.fed_avg(beta_2=0.9)
    laconic.fed_avg().replace(optimiser=3)
    laconic.fed_avg().replace(optimizer=3)
    laconic.simulate("fed_avg", "mlp", "digits", rouns=3)
    laconic.simulate("fed_avg", "mlp", "digits", rounds="three")
    laconic.simulate("fed_avg", "mlp", "digits", store="tape")
    laconic.simulate("fed_avg", "mlp")
    laconic.compare({"a": laconic.fed_avg}, "mlp", "digits", seedz=3)
    laconic.compare({"a": 3}, "mlp", "digits")
    laconic.compare({"a": "fed_avg"}, "mlp", "digits", rank_by=3)
    laconic.simulate("fed_avg", "mlp", "digits").save(3)
    laconic.SaveBest(mode="best")
    server_app("fed_avg", "mlp", "digits", quorom=0.8)
    server_app("fed_avg", "mlp", "digits", deadline="soon")
    laconic.TopK(ration=0.1)
    laconic.EarlyStopping(patiance=3)
