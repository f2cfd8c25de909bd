"""Calls that a type checker must accept; test_typing.py runs mypy on them."""

from __future__ import annotations

import laconic
from laconic.flower import server_app


def calls() -> None:
    laconic.fed_cams(compressor="sign", server_lr=0.03, local_steps=5)
    laconic.fed_cams(memory=False)
    laconic.fed_sgd(uplink="compressed", compressor="sign")
    laconic.fed_ef_sgd(compressor=laconic.TopK(ratio=1 / 64), granularity="layer", downlink="broadcast")
    laconic.fed_bnlaca(uplink={"threshold": 0.3}, downlink=laconic.Mirrored(laconic.Sign()))
    laconic.fed_amd(probability="optimal", anchor_batch=128)
    laconic.fed_avg(local_schedule="cosine:100", optimizer=laconic.SGD(momentum=0.9))
    laconic.fed_avg().replace(optimizer="adam", beta2=0.9)

    result: laconic.Result = laconic.simulate(
        "fed_avg", "mlp", "digits", rounds=3, participants=5, seed=1, store="disk"
    )
    laconic.simulate(laconic.scaffold(), "mlp", "digits", defense={"clip": 1.0}, callbacks=[laconic.EarlyStopping()])
    comparison: laconic.Comparison = laconic.compare(
        {"a": laconic.fed_avg, "b": laconic.fed_cams(), "c": "fed_avg:local_lr=0.1"}, "mlp", "digits", rounds=2, seeds=3
    )
    comparison.report("page.html")
    laconic.compare(["fed_avg", "fed_cams"], "mlp", "digits", out="runs/mine", resume=True)["fed_avg"].save("model")
    laconic.simulate("fed_avg", "mlp", "digits", out="runs/mine", resume=True, callbacks=[laconic.SaveBest("loss")])
    result.predict([[0.0]]).argmax(-1)
    assert result.evaluate(([[0.0]], [1]))["loss"] > 0
    assert result.accuracy is None or result.accuracy > 0.5
    server_app("fed_cams", "mlp", "digits", rounds=3, clients=10, deadline=30.0, quorum=0.8, compressor="sign")
    server_app("fed_avg", "mlp", "digits", clients=10, callbacks=[laconic.EarlyStopping()], largest_weight=2.0)
