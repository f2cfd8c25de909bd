"""Measure the simulation's speed relative to a plain PyTorch loop. Rounds of the two alternate in the same run.

    python benchmarks/simulation.py [--json] [--rounds 15] [--works W1 W2 W3] [--no-peers]

For W2 a third implementation alternates with them: a hand-written MLP for this workload only, as an upper bound of speed.

The workloads W1, W2 and W3 are in workloads.py. Other frameworks, if installed, run the same workloads afterward, each in
its own processes (peers.py). `pip install laconic[bench]` installs those that are on PyPI.

`overhead_fraction` is the fraction of a round's CPU time, over all threads, outside gradient calls: gathering batches, local
steps, packets, checksums, aggregation, the optimizer. `wall_outside_gradients` is stricter: the fraction of threads x wall
time outside gradient calls. It also counts a thread that waits while another finishes the last client of the round.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import peers
import torch
from timed import Timed, timed_gradients
from workloads import THREADS, WORKS, BareLoop, HandWritten, Work, load_data, make_simulation


def seconds(action: Callable[[], Any]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def measure(work: Work, rounds: int) -> dict[str, float]:
    """Run Laconic and the plain loop, one round of each in turn."""
    data = load_data(work)
    torch.set_num_threads(THREADS)
    bare = BareLoop(work, data, work.build())
    with timed_gradients():
        simulation = make_simulation(work, data, rounds + 2)
    own_rounds = simulation.rounds()

    def our_round() -> None:
        torch.set_num_threads(1)
        next(own_rounds)

    def their_round() -> None:
        torch.set_num_threads(THREADS)
        bare.round()

    limit = HandWritten(work, data, work.build()) if work is WORKS["W2"] else None
    our_round(), their_round()
    Timed.wall = Timed.processor = processor = 0.0
    ours, theirs, limits = [], [], []
    for _ in range(rounds):
        theirs.append(seconds(their_round))
        before = time.process_time()
        ours.append(seconds(our_round))
        processor += time.process_time() - before
        limits += [seconds(limit.round)] if limit else []
    own_rounds.close()
    simulation.close()
    return {
        **({"limit_over_bare_loop": _median_ratio(theirs, limits)} if limit else {}),
        "speedup_over_bare_loop": _median_ratio(theirs, ours),
        "samples_per_second": work.samples_per_round / statistics.median(ours),
        "overhead_fraction": 1 - Timed.processor / processor,
        "wall_outside_gradients": 1 - Timed.wall / (THREADS * sum(ours)),
        "seconds_per_round": statistics.median(ours),
        "bare_loop_seconds_per_round": statistics.median(theirs),
    }


def _median_ratio(slow: list[float], fast: list[float]) -> float:
    return statistics.median(one / other for one, other in zip(slow, fast, strict=True))


def beside_peers(name: str, ours: dict[str, float], rounds: int) -> dict[str, Any]:
    """Return each framework's time per round divided by ours, and divided by the plain loop's in the same run.

    For this comparison Laconic is measured again, like the others in a process of its own.
    """
    result: dict[str, Any] = {}
    for peer in peers.PEERS:
        found = peers.measure(peer, name, rounds)
        result[peer] = found
        if "seconds_per_round" in found:
            found["times_ours"] = found["seconds_per_round"] / result["laconic"]["seconds_per_round"]
            found["times_bare_loop"] = found["seconds_per_round"] / ours["bare_loop_seconds_per_round"]
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--rounds", type=int, default=15, help="rounds of each")
    parser.add_argument("--works", nargs="*", choices=list(WORKS), default=list(WORKS), help="which workloads")
    parser.add_argument("--no-peers", action="store_true", help="without other frameworks")
    options = parser.parse_args()
    results: dict[str, Any] = {name: measure(WORKS[name], options.rounds) for name in options.works}
    if not options.no_peers:
        results["peers"] = {
            name: beside_peers(name, results[name], max(5, options.rounds // 2)) for name in options.works
        }
    if options.json:
        print(json.dumps(results))
        return
    for name, numbers in results.items():
        print(name)
        for key, value in numbers.items():
            shown = f"{value:12.4g}" if isinstance(value, float) else json.dumps(value)
            print(f"  {key:32s} {shown}")


if __name__ == "__main__":
    main()
