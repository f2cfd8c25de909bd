"""Start a SuperNode that runs only apps its owner has approved: `python -m laconic.flower.supernode --apps FILE …`.

An app is code that the SuperLink sends to the node. FILE lists the SHA-256 hashes of approved apps, one per line, as
`sha256sum` prints them. It is read again whenever a run starts.

Flower has a check of its own: with `--trusted-entities`, a node runs an app only if a trusted key has signed it. Here the
trusted key exists only in the memory of this process, which signs the listed apps when they arrive, before any of their
code is unpacked. Signatures from the SuperLink are dropped. If a later Flower no longer calls this code, no app runs.

All other options are those of `flower-supernode`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Sequence
from functools import wraps
from hashlib import sha256
from logging import getLogger
from pathlib import Path
from typing import TypeVar

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from flwr.proto.fab_pb2 import GetFabRequest, GetFabResponse
from flwr.supercore.primitives.asymmetric_ed25519 import create_message_to_sign
from flwr.supercore.run import RunNotRunningException
from flwr.supernode.cli.flower_supernode import flower_supernode
from flwr.supernode.fleet_http_client import FleetHttpClient

from laconic.core.errors import ConfigError
from laconic.flower.forbidden import refuse_options

LOG = getLogger("flwr.laconic")
LOOPBACK = "127.0.0.1"
"""Where the node's own app processes connect to it."""
FORBIDDEN = {
    "--insecure": "a node connects with TLS and its key",
    "--allow-runtime-dependency-installation": "an app runs with the packages that the owner has installed",
}
"""Options of `flower-supernode` that a node refuses."""
_KEY = "fpk_node_owner"
Request = TypeVar("Request")
Response = TypeVar("Response")


class ApprovedApps:
    """Signs the apps that are listed in a file, with a key that only this object has."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self._key = Ed25519PrivateKey.generate()
        self.hashes()  # an unreadable list is an error at the start

    def hashes(self) -> set[str]:
        """The hashes in the file."""
        try:
            lines = self.path.read_text().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--apps {self.path}: {error}") from None
        words = [line.split()[0].lower() for line in lines if line.strip() and not line.startswith("#")]
        for word in words:
            if len(word) != 64 or set(word) - set("0123456789abcdef"):
                raise ConfigError(f"--apps {self.path}: '{word}' is no SHA-256 hash; write lines as sha256sum does")
        return set(words)

    def trusted_entities(self) -> str:
        """The content of the file for Flower's `--trusted-entities`: YAML, of which JSON is a part."""
        public = self._key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
        return json.dumps({_KEY: public.decode()})

    def sign(self, response: GetFabResponse) -> None:
        """Sign an app that has arrived, if it is approved."""
        app = response.fab
        app.verifications.clear()
        digest = sha256(app.content)
        try:
            approved = digest.hexdigest() in self.hashes()
        except ConfigError as error:
            LOG.error("laconic: %s", error)
            approved = False
        if not approved:
            LOG.error("laconic: app %s is refused: its hash is not in %s (--apps)", digest.hexdigest(), self.path)
            return
        signed_at = int(time.time())
        signature = self._key.sign(create_message_to_sign(digest.digest(), signed_at))
        # Flower asks for a license before it checks signatures.
        app.verifications["valid_license"] = "approved by the node's owner"
        app.verifications[_KEY] = json.dumps(
            {"signed_at": signed_at, "signature": urlsafe_b64encode(signature).decode()}
        )


def drop_messages_of_ended_runs() -> None:
    """Let Flower's SuperNode drop a message whose run ends while the node receives it.

    It drops a message after any other error, but `RunNotRunningException` is no `Exception`. The node would answer the
    message, and from then on send every reply one message too late (flwr 1.41).
    """
    for name in ("PullObject", "ConfirmMessageReceived"):
        setattr(FleetHttpClient, name, _failing_plainly(getattr(FleetHttpClient, name)))


def _failing_plainly(
    call: Callable[[FleetHttpClient, Request], Response],
) -> Callable[[FleetHttpClient, Request], Response]:
    @wraps(call)
    def wrapped(client: FleetHttpClient, request: Request) -> Response:
        try:
            return call(client, request)
        except RunNotRunningException:
            raise ConnectionAbortedError("its run has ended") from None

    return wrapped


def main(arguments: Sequence[str]) -> None:
    """Run `flower-supernode` with a list of approved apps."""
    parser = argparse.ArgumentParser(
        prog="python -m laconic.flower.supernode",
        description=(__doc__ or "").split("\n")[0],
        epilog="All other options are those of flower-supernode.",
        allow_abbrev=False,
    )
    parser.add_argument("--apps", type=Path, required=True, help="the file with the hashes of approved apps")
    options, others = parser.parse_known_args(arguments)
    refuse_options(parser, others, FORBIDDEN)
    try:
        apps = ApprovedApps(options.apps)
    except ConfigError as error:
        parser.error(str(error))
    fetch = FleetHttpClient.GetFab

    def fetch_and_sign(client: FleetHttpClient, request: GetFabRequest) -> GetFabResponse:
        response = fetch(client, request)
        apps.sign(response)
        return response

    FleetHttpClient.GetFab = fetch_and_sign  # type: ignore[method-assign, assignment]
    drop_messages_of_ended_runs()
    with tempfile.TemporaryDirectory(prefix="laconic-node-") as folder:
        trusted = Path(folder, "trusted.yaml")
        trusted.write_text(apps.trusted_entities())
        # The last of several equal options counts.
        sys.argv = ["flower-supernode", *others, "--host", LOOPBACK, "--trusted-entities", str(trusted)]
        flower_supernode()


if __name__ == "__main__":
    main(sys.argv[1:])
