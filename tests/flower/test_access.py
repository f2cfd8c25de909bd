"""Who may do what: strangers at the public port get nothing, nodes only speak for themselves and run only approved apps."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import re
import ssl
import subprocess
import sys
import time
from collections.abc import Callable
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from unittest.mock import MagicMock

import pytest

import laconic
from laconic.core.errors import ConfigError
from laconic.run.directory import RunDirectory
from laconic.run.files import load_tensors

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

import httpx
import tomli_w
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.cli.build import build_fab_from_disk
from flwr.common.serde import fab_from_proto
from flwr.proto.fab_pb2 import Fab, GetFabResponse
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import Message, Metadata, ObjectTree
from flwr.proto.node_pb2 import Node
from flwr.proto.recorddict_pb2 import RecordDict
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE
from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES
from flwr.supercore.run import RunNotRunningException
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor
from flwr.supernode.start_client_internal import _pull_and_store_message, _verify_fab

from laconic.cli.new_app import TEMPLATES, write_app
from laconic.flower.local_federation import CONNECTION, LocalFederation
from laconic.flower.local_keys import make_local_keys
from laconic.flower.superlink import FleetOnly
from laconic.flower.supernode import ApprovedApps, drop_messages_of_ended_runs
from tests.documentation.pages import PAGES

# Far more than it takes: a machine may be busy with other things.
PATIENCE = 600.0
OPERATOR = ("127.0.0.1", 8000)
PUBLIC = ("10.0.0.1", 9092)
SERVER = 1
"""Flower's node id of the server."""


# The second address.


def status(path: str, *, server: tuple[str, int] = PUBLIC, kind: str = "http", body: bytes = b"") -> int | str:
    """What a request gets; 200 if it reaches Flower with the body unchanged."""
    sent: list[dict] = []

    async def flower(scope, receive, send):
        event = await receive()
        assert event["body"] == body
        await send({"type": "http.response.start", "status": 200})

    async def receive():
        return {"type": "http.request", "body": body}

    async def send(event):
        sent.append(event)

    asyncio.run(FleetOnly(flower, OPERATOR)({"type": kind, "server": server, "path": path}, receive, send))
    return sent[0].get("status", sent[0]["type"])


NOT_FLEET = ["/", "/docs", "/v1/control/start-run", "/v1/runtime/acquire-task", "/v1/fleet", "/v1/fleet/"]
TRICKS = [
    "/v1/fleet/../control",
    "//v1/fleet/get-run",
    "/v1/fleet/get-run/",
    "/v1/fleet/get-run\n",
    "/x/v1/fleet/get-run",
]


@pytest.mark.parametrize("path", [*NOT_FLEET, *TRICKS])
def test_the_public_address_serves_nothing_but_the_fleet_api(path):
    assert status(path) == 404
    assert status(path, server=("127.0.0.1", 9092)) == 404, "the port decides, not where the request comes from"
    assert status(path, server=OPERATOR) == 200
    assert status("/v1/fleet/get-run") == 200
    assert status("/v1/fleet/get-run", kind="websocket") == "websocket.close"


def pushed(node: int, source: int, reply_to: str, **metadata) -> PushMessagesRequest:
    about = Metadata(src_node_id=source, reply_to_message_id=reply_to, **metadata)
    return PushMessagesRequest(node=Node(node_id=node), messages_list=[Message(metadata=about)])


def test_a_node_sends_only_its_own_replies():
    path = "/v1/fleet/push-messages"
    assert status(path, body=pushed(5, 5, "question").SerializeToString()) == 200
    assert status(path, body=pushed(5, 6, "question").SerializeToString()) == 403, "a reply of another node"
    assert status(path, body=pushed(5, SERVER, "").SerializeToString()) == 403, "an instruction in the server's name"
    two = pushed(5, 5, "question")
    two.messages_list.append(pushed(5, SERVER, "").messages_list[0])
    assert status(path, body=two.SerializeToString()) == 403
    assert status(path, body=b"\xff") == 403
    assert status(path, body=bytes(1 << 25)) == 403


# Approved apps.


def arrives(apps: ApprovedApps, content: bytes, claims: dict[str, str] | None = None) -> bool:
    """Whether Flower's SuperNode accepts an app."""
    response = GetFabResponse(fab=Fab(hash_str="", content=content, verifications=claims or {}))
    apps.sign(response)
    fab = fab_from_proto(response.fab)
    return bool(fab.verifications.get("valid_license")) and _verify_fab(fab, json.loads(apps.trusted_entities()))


def test_a_node_accepts_the_apps_in_its_list(tmp_path):
    listed = tmp_path / "apps"
    listed.write_text(f"# what we agreed to\n\n{sha256(b'ours').hexdigest()}  ours.fab\n")
    apps = ApprovedApps(listed)
    assert arrives(apps, b"ours")
    assert not arrives(apps, b"theirs")
    # A signature that another process made, or that the SuperLink has copied from another app, counts for nothing.
    other = tmp_path / "others"
    other.write_text(sha256(b"theirs").hexdigest())
    response = GetFabResponse(fab=Fab(content=b"theirs"))
    ApprovedApps(other).sign(response)
    assert not arrives(apps, b"theirs", dict(response.fab.verifications))
    copied = GetFabResponse(fab=Fab(content=b"ours"))
    apps.sign(copied)
    assert not arrives(apps, b"theirs", dict(copied.fab.verifications))
    # The list is read again.
    with listed.open("a") as file:
        file.write(sha256(b"theirs").hexdigest().upper() + "\n")
    assert arrives(apps, b"theirs")
    listed.write_text("nonsense")
    assert not arrives(apps, b"ours")
    listed.unlink()
    assert not arrives(apps, b"ours")


def test_a_list_that_cannot_be_read_is_an_error_at_the_start(tmp_path):
    with pytest.raises(ConfigError, match="No such file"):
        ApprovedApps(tmp_path / "apps")
    (tmp_path / "apps").write_text("my-app\n")
    with pytest.raises(ConfigError, match="'my-app' is no SHA-256 hash"):
        ApprovedApps(tmp_path / "apps")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["superlink", "--host", "0.0.0.0"], "--host is not allowed"),
        (["superlink", "--host=0.0.0.0"], "--host is not allowed"),
        (["superlink", "--insecure"], "--insecure is not allowed"),
        (["superlink", "--insec"], "--insecure is not allowed"),
        (["superlink", "--fleet-address", "9092"], "HOST:PORT"),
        (["supernode", "--superlink", "127.0.0.1:9092"], "--apps"),
        (["supernode", "--apps", "missing"], "No such file"),
        (["supernode", "--apps", "missing", "--insecure"], "--insecure is not allowed"),
        (["supernode", "--apps", "missing", "--insec"], "--insecure is not allowed"),
        (
            ["supernode", "--apps", "missing", "--allow-runtime"],
            "--allow-runtime-dependency-installation is not allowed",
        ),
        (["prefork", "flower-superlink", "--host", "0.0.0.0"], "superlink or supernode is allowed"),
    ],
)
def test_the_open_form_is_refused(arguments, words, capsys):
    program, *options = arguments
    with pytest.raises(SystemExit) as end:
        import_module(f"laconic.flower.{program}").main(options)
    assert end.value.code == 2
    assert words in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("refused", ["PullObject", "ConfirmMessageReceived"])
def test_a_node_drops_a_message_whose_run_has_ended(refused: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower keeps it and then sends every reply one message too late."""

    def call(client: FleetHttpClient, request: str) -> bytes:
        return b"content"

    def call_of_an_ended_run(client: FleetHttpClient, request: str) -> bytes:
        raise RunNotRunningException

    for name in ("PullObject", "ConfirmMessageReceived"):
        monkeypatch.setattr(FleetHttpClient, name, call_of_an_ended_run if name == refused else call)

    def kept() -> bool:
        """Whether the node still has the message after receiving it."""
        state, message = MagicMock(), MagicMock()
        state.create_task.return_value = 7
        store = MagicMock(**{"preregister.return_value": ["an object"]})
        client = FleetHttpClient.__new__(FleetHttpClient)
        _pull_and_store_message(
            state,
            store,
            {},
            receive=lambda: (message, MagicMock()),
            get_run=MagicMock(),
            get_fab=MagicMock(),
            pull_object=lambda run, name: client.PullObject(name),
            confirm_message_received=lambda run, name: client.ConfirmMessageReceived(name),
            trusted_entities=None,
        )
        state.store_message.assert_called_once_with(message)
        return not (state.delete_messages.called and state.finish_task.called and store.delete.called)

    # If this fails, Flower drops it by itself, and `drop_messages_of_ended_runs` can go.
    assert kept()
    drop_messages_of_ended_runs()
    assert not kept()


def test_superlink_and_supernode_do_not_import_torch():
    program = "import sys, laconic.flower.superlink, laconic.flower.supernode; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_the_hash_of_an_app_depends_on_its_code_and_settings_only(tmp_path):
    write_app(tmp_path / "app", 1)
    before = build_fab_from_disk(tmp_path / "app")
    for path in (
        "keys/ca.crt",
        "runs/app/config.toml",
        "runs/app/metrics.jsonl",
        "notes.md",
        "laconic.app.0-1-0.1a.fab",
    ):
        (tmp_path / "app" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "app" / path).write_text("")
    assert build_fab_from_disk(tmp_path / "app") == before
    for path in ("app/client_app.py", "pyproject.toml"):
        file = tmp_path / "app" / path
        text = file.read_text()
        file.write_text(text.replace("mlp:64", "mlp:32"))
        assert build_fab_from_disk(tmp_path / "app") != before
        file.write_text(text)


def test_only_the_safe_form_is_documented():
    for page in [*PAGES, *TEMPLATES.rglob("*")]:
        if page.is_file():
            text = page.read_text()
            assert "prefork flower-" not in text, page
            assert not re.search(r"super(link|node)\b[^`]*--host 0\.0\.0\.0", text), page


# Real processes.


class Stranger:
    """Somebody with the certificate of the authority who can reach a port."""

    def __init__(self, folder: Path, authority: Path, port: int) -> None:
        self.port = port
        self.keys = make_local_keys(folder / "own-keys", 1)
        self.context = ssl.create_default_context(cafile=str(authority))
        home = folder / "home"
        home.mkdir()
        link = {"address": f"127.0.0.1:{port}", "root-certificates": str(authority)}
        (home / "config.toml").write_text(tomli_w.dumps({"superlink": {"default": "theirs", "theirs": link}}))
        self.environment = os.environ | {
            "FLWR_HOME": str(home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
        }

    def flwr(self, *arguments: str) -> subprocess.Popen[str]:
        program = "import sys; from flwr.cli.app import app; sys.argv[0] = 'flwr'; app()"
        command = [sys.executable, "-c", program, *arguments]
        return subprocess.Popen(
            command, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def status(self, path: str, method: str = "POST") -> int:
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, context=self.context, timeout=60)
        connection.request(method, path, b"", {"content-type": PROTOBUF_MEDIA_TYPE})
        try:
            return connection.getresponse().status
        finally:
            connection.close()


def wait(trial: LocalFederation, what: Callable[[], object]) -> None:
    ends = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < ends, trial.log_of("superlink")[-5000:] + trial.log_of("node-0")[-3000:]
        time.sleep(0.1)


def operator_sees(trial: LocalFederation, *command: str) -> dict:
    output = trial.flwr(*command, CONNECTION, "--format", "json")
    return json.loads(output[output.index("{") :])


def write_marked_app(folder: Path, marker: Path) -> Path:
    """An app that leaves a file wherever its code runs."""
    write_app(folder, 1)
    for name in ("client_app", "server_app"):
        path = folder / folder.name / f"{name}.py"
        path.write_text(path.read_text() + f"\nopen({str(marker)!r} + {name!r}, 'w').close()\n")
    return folder


def test_a_stranger_is_refused_and_the_federation_works(tmp_path: Path):
    ours = tmp_path / "ours"
    write_app(ours, 1)
    run = RunDirectory(tmp_path / "run")
    # In the second round, the node's process needs the error memory that the first one left in a file.
    settings = {"algorithm": "fed_cams:compressor=sign", "rounds": 2, "model": "logistic", "strategy": "loop"}
    settings |= {"out": str(run.path)}
    with LocalFederation(tmp_path / "federation", 1) as trial:
        number = trial.run(ours, settings)
        stranger = Stranger(tmp_path, trial.keys.authority, trial.fleet_port)
        attempts = [
            stranger.flwr("supernode", "register", str(stranger.keys.public(0)), "theirs"),
            stranger.flwr("run", str(ours), "theirs"),
            stranger.flwr("ls", "theirs"),
            stranger.flwr("stop", str(number), "theirs"),
        ]
        for (method, path), _ in PROTOBUF_REQUEST_TYPES.items():
            assert stranger.status(path, method) == (401 if path.startswith("/v1/fleet/") else 404), path
        for path in ("/docs", "/openapi.json", "/v1/fleet/../control/list-runs", "/v1/fleet/%2e%2e/control/list-runs"):
            assert stranger.status(path, "GET") == 404, path
        for attempt in attempts:
            output, _ = attempt.communicate(timeout=PATIENCE)
            assert attempt.returncode != 0, output
            assert "404" in output or "Not Found" in output, output
        assert_a_node_cannot_speak_for_the_server(trial, number)
        wait(trial, run.model.exists)
        assert load_tensors(run.model)[1]["sha256"] == expected_model()
        assert len(operator_sees(trial, "ls")["runs"]) == 1
        assert len(operator_sees(trial, "supernode", "list")["nodes"]) == 1

        # The operator starts an app that the node's owner has not approved. The server's half runs; the node's does not.
        marker = tmp_path / "was-here-"
        other = write_marked_app(tmp_path / "other", marker)
        trial.flwr("run", str(other), CONNECTION, "--run-config", f'out="{tmp_path / "second"}"')
        digest = sha256(build_fab_from_disk(other)).hexdigest()
        wait(trial, lambda: f"app {digest} is refused" in trial.log_of("node-0"))
        wait(trial, lambda: "Sent successfully" in trial.log_of("node-0").split("is refused")[-1])
        assert Path(f"{marker}server_app").exists()
        assert not Path(f"{marker}client_app").exists()
        assert not trial.dead()


def expected_model() -> str:
    """The hash of the model that a simulation of the same run ends with."""
    data = laconic.data.load("digits", clients=1, partition="iid")
    algorithm = laconic.fed_cams(compressor="sign")
    return laconic.simulate(algorithm, "logistic", data, rounds=2, numerics={"strategy": "loop"}).model_sha256


def assert_a_node_cannot_speak_for_the_server(trial: LocalFederation, run: int) -> None:
    """A registered node asks Flower to deliver an instruction in the server's name to a node (here, itself)."""
    key = load_ssh_private_key(trial.keys.node(0).read_bytes(), password=None)
    (node,) = operator_sees(trial, "supernode", "list")["nodes"]
    number = int(node["node-id"])
    about = {"run_id": run, "message_id": "f" * 64, "dst_node_id": number, "ttl": 60.0, "created_at": time.time()}
    forged = pushed(number, SERVER, "", message_type="query", **about)
    forged.messages_list[0].content.CopyFrom(RecordDict())
    forged.message_object_trees.append(ObjectTree(object_id="f" * 64))
    with (
        FleetHttpClient.from_server_address(
            f"127.0.0.1:{trial.fleet_port}",
            False,
            trial.keys.authority.read_bytes(),
            interceptors=[NodeAuthHttpInterceptor(key, key.public_key())],
        ) as client,
        pytest.raises(httpx.HTTPStatusError) as refused,
    ):
        client.PushMessages(forged)
    assert refused.value.response.status_code == 403
