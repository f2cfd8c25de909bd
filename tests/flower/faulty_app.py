"""An app whose processes die, or say old things, where a test tells them to: a file beside the node's says when.

What runs is Laconic as it is; the app only looks on, and pulls the plug.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from laconic.cli.new_app import write_app

CLIENT = '''\
"""A node that dies in the phase of a round that a file names, or repeats its last answer but one."""

import os
import pickle
import signal
from pathlib import Path

from laconic.federation.disk_store import SharedStore
from laconic.flower import client_app
from laconic.flower.client import Node, node_file


def told(path, what):
    flag = path.with_name(f"{path.stem}.{what}")
    if not flag.exists():
        return None
    word = flag.read_text()
    flag.unlink()
    return word


def die(store, phase):
    word = told(store.database.path, phase)
    if word == "process":
        os.kill(os.getpid(), signal.SIGKILL)
    elif word == "node":
        # The SuperNode and all that it has started.
        os.killpg(os.getpgrp(), signal.SIGKILL)


settle, propose, train = SharedStore.settle, SharedStore.propose, Node.train


def settled(self, client, question):
    die(self, "asked")
    return settle(self, client, question)


def proposed(self, client, known, state):
    die(self, "worked")
    number = propose(self, client, known, state)
    die(self, "written")
    return number


def trained(self, record, context):
    path = node_file(context, self._state).path
    content = train(self, record, context)
    kept = path.with_suffix(".replies")
    replies = pickle.loads(kept.read_bytes()) if kept.exists() else []
    said = dict(content.config_records["laconic"])
    kept.write_bytes(pickle.dumps([*replies, said]))
    if told(path, "replay") is not None:
        content.config_records["laconic"].update(replies[-1])
    return content


SharedStore.settle, SharedStore.propose, Node.train = settled, proposed, trained
app = client_app("mlp:32", "digits")
'''

SERVER = '''\
"""A server that writes down whose updates it has folded, and dies before or after a checkpoint where a file says so."""

import os
import signal
from pathlib import Path

from laconic.flower import server_app
from laconic.flower.training import FederatedTraining
from laconic.run.directory import RunDirectory
from laconic.federation.round import Round

save, finish = RunDirectory.save_checkpoint, Round.finish
FOLDER = Path({folder!r})


def die(phase):
    flag = FOLDER / f"server.{{phase}}"
    if flag.exists():
        flag.unlink()
        os.kill(os.getpid(), signal.SIGKILL)


def saved(self, training):
    die("before")
    save(self, training)
    die("after")


def finished(self, exchange):
    outcome = finish(self, exchange)
    with (FOLDER / "folded").open("a") as file:
        for client in self.answered:
            file.write(f"{{self.server.incarnation}} {{self.server.round}} {{client}}\\n")
    return outcome


RunDirectory.save_checkpoint, Round.finish = saved, finished
app = server_app("fed_cams", "mlp:32", "digits", clients={nodes})
'''


def write_faulty_app(folder: Path, nodes: int) -> Path:
    """The app in `folder/app`; files of a node lie in `folder/nodes`, the server's in `folder`."""
    write_app(folder / "app", nodes)
    (folder / "app" / "app" / "client_app.py").write_text(CLIENT)
    (folder / "app" / "app" / "server_app.py").write_text(SERVER.format(folder=str(folder), nodes=nodes))
    return folder / "app"


def folded(folder: Path) -> Mapping[int, set[int]]:
    """Whose updates count, by round: of a round that was run again, those of the last time."""
    found: dict[int, tuple[int, set[int]]] = {}
    for line in (folder / "folded").read_text().splitlines():
        incarnation, round, client = map(int, line.split())
        if round not in found or found[round][0] < incarnation:
            found[round] = incarnation, set()
        found[round][1].add(client)
    return {round: clients for round, (_, clients) in found.items()}
