"""Flower's traffic, measured at the sockets of the SuperNodes, compared with Laconic's ledger.

Every SuperNode connects to the SuperLink through a proxy that counts bytes, TLS included. Three parts are distinguished:

- the envelope: a message as Flower serializes it, without Laconic's packets, which the ledger counts
  (benchmarks/flower_envelope.py);
- polling: bytes per second of an idle SuperNode, measured first and subtracted for the duration of the run;
- the rest, per message: calls, heartbeats and TLS caused by the run, including the envelope.

    python benchmarks/flower_bytes.py [--rounds 5] [--nodes 2] [--model mlp:14000] [--json]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from flower_envelope import envelope, example

from laconic import models
from laconic.cli.new_app import write_app
from laconic.cli.view import size
from laconic.core.layout import Layout
from laconic.flower.local_federation import LocalFederation
from laconic.run.directory import RunDirectory, read_metrics

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.flower.proxy import Proxy

ALGORITHMS = ("fed_avg", "fed_cams:compressor=sign")
IDLE_SECONDS = 20.0
PATIENCE = 900.0


def measure(folder: Path, nodes: int, rounds: int, model: str) -> list[dict[str, Any]]:
    """One row for each algorithm."""
    write_app(folder / "app", nodes)
    trial = LocalFederation(folder, nodes)
    with ExitStack() as stack:
        proxies = [stack.enter_context(Proxy(trial.fleet_port)) for _ in range(nodes)]
        trial.proxy_ports = {node: proxy.port for node, proxy in enumerate(proxies)}
        stack.enter_context(trial)

        def moved() -> dict[str, int]:
            return {"up": sum(proxy.up for proxy in proxies), "down": sum(proxy.down for proxy in proxies)}

        # Warm-up: the first run transfers the app to the nodes.
        train(trial, "fed_avg", 1, model, nodes)
        time.sleep(2)
        before = moved()
        time.sleep(IDLE_SECONDS)
        idle = {way: (moved()[way] - before[way]) / IDLE_SECONDS for way in before}
        parameters = Layout.of(models.build(model, (1, 8, 8), 10)).size
        rows = []
        for algorithm in ALGORITHMS:
            before, began = moved(), time.monotonic()
            record = train(trial, algorithm, rounds, model, nodes)
            seconds, after = time.monotonic() - began, moved()
            for way in ("down", "up"):
                messages = rounds * nodes
                payload = record[f"bytes_{way}"]
                socket = after[way] - before[way]
                polling = round(idle[way] * seconds)
                compressor = "sign" if way == "up" and "sign" in algorithm else "dense"
                packets, around = envelope(example(parameters, compressor, way))
                rows.append(
                    {
                        "algorithm": algorithm,
                        "way": way,
                        "messages": messages,
                        "ledger_bytes": payload,
                        "socket_bytes": socket,
                        "polling_bytes_per_second": round(idle[way] / nodes),
                        "polling_bytes": polling,
                        "payload_per_message": payload / messages,
                        "envelope_per_message": around,
                        "envelope": around / packets,
                        "rest_per_message": (socket - payload - polling) / messages,
                        "rest": (socket - payload - polling) / payload,
                        "seconds": round(seconds, 1),
                    }
                )
    return rows


def train(trial: LocalFederation, algorithm: str, rounds: int, model: str, nodes: int) -> dict[str, Any]:
    """Run to completion and return the last record."""
    name = f"{algorithm.partition(':')[0]}-{rounds}"
    run = RunDirectory(trial.folder / name)
    settings = {"algorithm": algorithm, "rounds": rounds, "model": model, "out": str(run.path), "eval-every": rounds}
    trial.run(trial.folder / "app", settings)
    ends = time.monotonic() + PATIENCE
    while not run.model.exists():
        if time.monotonic() > ends:
            raise SystemExit(trial.log_of("superlink")[-3000:])
        time.sleep(0.1)
    return read_metrics(run.metrics)[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--model", default="mlp:14000", help="on 64 inputs and 10 classes: 1,050,010 parameters")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="laconic-bytes-") as folder:
        rows = measure(Path(folder), options.nodes, options.rounds, options.model)
    if options.json:
        print(json.dumps({"nodes": options.nodes, "rounds": options.rounds, "model": options.model, "rows": rows}))
        return
    for row in rows:
        print(
            f"{row['algorithm']:26}{row['way']:6}{row['messages']:4} messages of {size(row['payload_per_message']):>8}:"
            f" envelope {row['envelope_per_message']} B ({100 * row['envelope']:.2f} %); at the socket, without polling,"
            f" {row['rest_per_message']:.0f} B more each ({100 * row['rest']:.2f} %);"
            f" polling {row['polling_bytes_per_second']} B/s a node, {row['polling_bytes']:,} B in {row['seconds']:.0f} s"
        )


if __name__ == "__main__":
    main()
