"""A run on a real cluster of two Ray nodes, one of which is taken away in the middle: `on_a_cluster.py FOLDER`.

Prints one JSON object: the hashes of the models, of a run in this process and of those on the cluster.
"""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

import ray
from ray.cluster_utils import Cluster

from laconic.run.directory import RunDirectory
from tests.engine.ray_problem import ALGORITHMS, FAULTS, result_of, simulation, without_times


class Deaths(logging.Handler):
    count = 0

    def emit(self, record: logging.LogRecord) -> None:
        Deaths.count += "died" in record.getMessage()


def main() -> None:
    folder = Path(sys.argv[1])
    logging.getLogger("laconic").addHandler(Deaths())
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    other = cluster.add_node(num_cpus=1)
    algorithm = ALGORITHMS["fed_cams"]
    settings = {"engine": "ray", "ray": {"workers": 2, "address": cluster.address, "repeat": True}, "faults": FAULTS}
    inline = result_of(simulation(algorithm, faults=FAULTS))
    # Each node has one core: two workers are on both of them.
    spread = result_of(simulation(algorithm, **settings))
    # One more node: the worker whose node goes has a place to go to; its store is on a disk that they share.
    cluster.add_node(num_cpus=1)
    directory = RunDirectory(folder / "run")
    moved = simulation(algorithm, **settings)
    directory.create(moved, "")
    history = []
    for record in moved.rounds():
        history.append(record)
        directory.append(record)
        if record["round"] == 2:
            cluster.remove_node(other)
    sha = moved.model_sha256()
    moved.close()
    found = {
        "inline": inline,
        "spread": spread,
        "moved": (sha, without_times(history)),
        "deaths": Deaths.count,
        "nodes": sum(node["Alive"] for node in ray.nodes()),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
