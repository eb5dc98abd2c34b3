"""Loopback: the dashboard listens on this machine only, and answers its own page only."""

from __future__ import annotations

import os
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final
from urllib.parse import urlsplit

from holdfast.errors import JobError

ADDRESS: Final = "127.0.0.1"
NAMES: Final = frozenset({ADDRESS, "localhost"})
"""Names under which a browser reaches it, also through a forwarded port."""

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Server = Callable[[Message, Receive, Send], Awaitable[None]]
"""An application, as ASGI defines it."""


def listen(port: int) -> socket.socket:
    """A socket that listens at a port of this machine; at a free one for 0.

    Raises:
        JobError: The port is taken, or reserved.
    """
    try:
        return socket.create_server((ADDRESS, port))
    except OSError as error:
        raise JobError(
            f"--port {port}: this host cannot listen at {ADDRESS}:{port}: "
            f"{os.strerror(error.errno or 0)}; pass another, or 0 for any that is free"
        ) from None


def own_page_only(page: Server) -> Server:
    """A server that refuses what a page of another site makes a browser send.

    Streamlit takes a request for one of its own page if `Host` and `Origin` are equal. A site can
    make them so: it lets its own name stand for 127.0.0.1 (DNS rebinding).
    """

    async def checked(scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or is_own(dict(scope["headers"])):
            await page(scope, receive, send)
        elif scope["type"] == "websocket":
            await receive()  # the request to connect
            await send({"type": "websocket.close", "code": 1008})
        else:
            await send({"type": "http.response.start", "status": 403, "headers": []})
            await send({"type": "http.response.body", "body": b"not a page of this dashboard\n"})

    return checked


def is_own(headers: dict[bytes, bytes]) -> bool:
    """True if a request is for a name of this machine, and no other site's page has sent it."""
    host = headers.get(b"host", b"").decode("latin-1")
    origin = headers.get(b"origin")
    try:
        name = urlsplit(f"//{host}").hostname
        sender = host if origin is None else urlsplit(origin.decode("latin-1")).netloc
    except ValueError:
        return False
    return name in NAMES and sender == host
