"""Gate: every request passes it before Streamlit sees it, websockets and files too.

host is not ours ─────────▶ 400
of a page of another site ▶ 403
/login, /?token=… ────────▶ a session, for the token
no session ───────────────▶ 401; on this machine, the page, which stops no run then
session ──────────────────▶ the page
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextlib import suppress
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import HTMLResponse

from holdfast.views.dashboard.access import login
from holdfast.views.dashboard.access.address import Address
from holdfast.views.dashboard.access.sessions import COOKIE, SESSION_S, WINDOW_S, Access, Shown

MAX_FORM_BYTES: Final = 4096
FORM_TIMEOUT_S: Final = 10.0
"""How long a client may take to send the form."""
_FRAMED: Final = (b"x-frame-options", b"DENY")  # no site lays its own page over the button
_SECURE: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'",
    "Referrer-Policy": "same-origin",
}
_REFUSALS: Final = {
    Shown.WRONG: (HTTPStatus.UNAUTHORIZED, "This token is wrong."),
    Shown.TOO_MANY: (
        HTTPStatus.TOO_MANY_REQUESTS,
        f"Too many wrong tokens; try again in {WINDOW_S:.0f} s.",
    ),
}

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Server = Callable[[Message, Receive, Send], Awaitable[None]]
"""An application, as ASGI defines it."""


class Gate:
    """Lets in who may see the page.

    Args:
        page: The application behind it.
        access: Knows the token.
        address: Where it is served.
    """

    def __init__(self, page: Server, access: Access, address: Address) -> None:
        self._page, self._access, self._address = page, access, address

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it to the page."""
        if scope["type"] == "lifespan":
            await self._page(scope, receive, send)
            return

        async def framed(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], _FRAMED]
            await send(message)

        answer = await self._answer(scope, receive)
        await (self._page if answer is None else answer)(scope, receive, framed)

    async def _answer(self, scope: Message, receive: Receive) -> Server | None:
        """What is answered in the page's place; None if the visitor may have the page."""
        connection = HTTPConnection(scope)
        host = connection.headers.get("host", "")
        origin = connection.headers.get("origin")
        if not self._address.serves(host):
            return _answer(HTTPStatus.BAD_REQUEST, "this is not the dashboard's host; see --host")
        if origin is not None and not _is_same(origin, host):
            return _answer(HTTPStatus.FORBIDDEN)
        if scope["type"] == "http":
            request = Request(scope, receive)
            if request.url.path == login.PATH:
                return await self._login(request)
            if request.url.path == "/" and login.TOKEN in request.query_params:
                return self._checked(request, request.query_params[login.TOKEN])
        if self._address.is_loopback or self._access.is_session(connection.cookies.get(COOKIE)):
            return None
        is_visit = scope["type"] == "http" and connection.url.path == "/"
        form = login.form(_query(connection)) if is_visit else ""
        return _answer(HTTPStatus.UNAUTHORIZED, form, {"WWW-Authenticate": "Token"})

    async def _login(self, request: Request) -> Server:
        if request.method == "POST":
            return self._checked(request, await _token_of(request))
        return _answer(HTTPStatus.OK, login.form(_query(request)))

    def _checked(self, request: Request, token: str) -> Server:
        """The answer to one who shows a token."""
        client = request.client.host if request.client else ""
        found = self._access.check(token, client, time.monotonic())
        query = _query(request)
        if found is not Shown.RIGHT:
            status, words = _REFUSALS[found]
            return _answer(status, login.form(query, words))
        secure = "" if self._address.is_loopback else "; Secure"
        cookie = f"{COOKIE}={self._access.new_session()}; Max-Age={SESSION_S}; Path=/"
        headers = {"Set-Cookie": f"{cookie}; HttpOnly; SameSite=Strict{secure}"}
        if request.method == "POST":
            headers["Location"] = login.with_query("/", query)
            return _answer(HTTPStatus.SEE_OTHER, "", headers)
        return _answer(HTTPStatus.OK, login.forward(query), headers)


def _answer(
    status: HTTPStatus, page: str = "", headers: Mapping[str, str] = MappingProxyType({})
) -> Server:
    answer: Server = HTMLResponse(page, status, headers={**_SECURE, **headers})
    return answer


def _is_same(origin: str, host: str) -> bool:
    try:
        return urlsplit(origin).netloc == host
    except ValueError:
        return False


def _query(connection: HTTPConnection) -> login.Query:
    return [each for each in connection.query_params.multi_items() if each[0] != login.TOKEN]


async def _token_of(request: Request) -> str:
    """The token in a form; empty if there is none, or the form is too long or too slow."""
    body = b""
    with suppress(ClientDisconnect, TimeoutError):
        async with asyncio.timeout(FORM_TIMEOUT_S):
            async for piece in request.stream():
                body += piece
                if len(body) > MAX_FORM_BYTES:
                    return ""
    return parse_qs(body.decode("latin-1")).get(login.TOKEN, [""])[0]
