"""Start a SuperLink that only its operator can control: `python -m laconic.flower.superlink --fleet-address HOST:PORT …`.

Flower serves three APIs on one port. The Fleet API is for nodes, and accepts only registered keys. The Control API starts
and stops runs and registers nodes; the Runtime API serves the process of the server app. Both accept everyone. So Flower's
own port is bound to the loopback address here, for the operator on this machine or through an SSH tunnel. A second address,
`--fleet-address`, is for nodes, and serves only the Fleet API.

All other options are those of `flower-superlink`. TLS and the authentication of nodes are always on, and Flower installs no
packages.
"""

from __future__ import annotations

import argparse
import os
import re
import socket
import sys
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from logging import getLogger
from typing import Any

import uvicorn
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.supercore.address import parse_address
from flwr.superlink.cli.flower_superlink import flower_superlink
from google.protobuf.message import DecodeError

from laconic.flower.forbidden import refuse_options

LOOPBACK = "127.0.0.1"
FLEET_ADDRESS = "0.0.0.0:9092"
_FLEET_PATH = re.compile(r"/v1/fleet/[a-z-]+")
_PUSH_PATH = "/v1/fleet/push-messages"
_PUSH_BYTES = 1 << 24
"""The largest accepted reply without its content, which nodes send separately."""
_ALWAYS = ("--host", LOOPBACK, "--enable-supernode-auth", "--disable-runtime-dependency-installation")
_OTHER_PORTS = ("FLWR_INTERNAL_GRPC_CONTROL_API", "FLWR_INTERNAL_GRPC_FLEET_API")
"""Variables that make Flower open its old ports in addition."""

Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
Application = Callable[[Event, Receive, Send], Awaitable[None]]


class FleetOnly:
    """Serves an ASGI application completely on one address, and only its Fleet API on every other address."""

    def __init__(self, application: Application, operator: tuple[str, int]) -> None:
        self._application, self._operator = application, operator

    async def __call__(self, scope: Event, receive: Receive, send: Send) -> None:
        """Handle one request."""
        # `server` is the local address of the connection, as the kernel reports it: nothing in a request can change it.
        if scope["type"] == "lifespan" or scope["server"] == self._operator:
            await self._application(scope, receive, send)
        elif scope["type"] != "http" or not _FLEET_PATH.fullmatch(scope["path"]):
            await _refuse(scope, send, 404)
        elif scope["path"] == _PUSH_PATH:
            body = await _body(receive)
            if body is None or not _is_own_reply(body):
                await _refuse(scope, send, 403)
            else:
                await self._application(scope, _again(body, receive), send)
        else:
            await self._application(scope, receive, send)


def _is_own_reply(body: bytes) -> bool:
    """Whether a node sends its own reply. Flower would also deliver instructions to other nodes in the server's name."""
    try:
        request = PushMessagesRequest.FromString(body)
    except DecodeError:
        return False
    sent = [message.metadata for message in request.messages_list]
    return all(reply.reply_to_message_id and reply.src_node_id == request.node.node_id for reply in sent)


async def _body(receive: Receive) -> bytes | None:
    """The whole body, or None if it is too long or the node has gone."""
    body, more = b"", True
    while more:
        event = await receive()
        if event["type"] != "http.request" or len(body) > _PUSH_BYTES:
            return None
        body, more = body + event.get("body", b""), event.get("more_body", False)
    return body


def _again(body: bytes, receive: Receive) -> Receive:
    """A `receive` that delivers the body a second time."""
    events = [{"type": "http.request", "body": body, "more_body": False}]

    async def next_event() -> Event:
        return events.pop() if events else await receive()

    return next_event


async def _refuse(scope: Event, send: Send, status: int) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close"})
        return
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body"})


def _serve(fleet: tuple[str, int], application: Application, host: str, port: int, **options: Any) -> None:
    """What Flower calls instead of `uvicorn.run`: one server on two addresses."""
    options |= {"proxy_headers": False, "workers": 1}
    config = uvicorn.Config(FleetOnly(application, (host, port)), host=host, port=port, **options)
    if not config.is_ssl:
        raise SystemExit("the SuperLink needs TLS: --ssl-ca-certfile, --ssl-certfile, --ssl-keyfile")
    getLogger("flwr").info("Nodes connect to %s:%s, which serves only the Fleet API", *fleet)
    server = uvicorn.Server(config)
    server.run([_listen(host, port), _listen(*fleet)])
    if not server.started:
        sys.exit(1)


def _listen(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise SystemExit(f"cannot listen on {host}:{port}: {error.strerror}") from None


def main(arguments: Sequence[str]) -> None:
    """Run `flower-superlink` with a second address for nodes."""
    parser = argparse.ArgumentParser(
        prog="python -m laconic.flower.superlink",
        description=(__doc__ or "").split("\n")[0],
        epilog="All other options are those of flower-superlink.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--fleet-address", default=FLEET_ADDRESS, help=f"address that nodes connect to (default: {FLEET_ADDRESS})"
    )
    options, others = parser.parse_known_args(arguments)
    reason = f"the Control API is always on {LOOPBACK}, with TLS"
    refuse_options(parser, others, {"--host": reason, "--insecure": reason})
    address = parse_address(options.fleet_address)
    if address is None or not address[0]:
        parser.error(f"--fleet-address {options.fleet_address}: HOST:PORT is needed, such as {FLEET_ADDRESS}")
    fleet = address[:2]
    for variable in _OTHER_PORTS:
        os.environ.pop(variable, None)

    def serve(app: Application, host: str, port: int, **settings: Any) -> None:
        _serve(fleet, app, host, port, **settings)

    uvicorn.run = serve  # type: ignore[assignment]  # Flower starts its server with this function.
    # The last of several equal options counts.
    sys.argv = ["flower-superlink", *others, *_ALWAYS]
    flower_superlink()


if __name__ == "__main__":
    main(sys.argv[1:])
