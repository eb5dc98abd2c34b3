"""Sessions: who may see the dashboard from elsewhere, and stop a run with it.

A visitor shows the token once and gets a session, a signed number in a cookie. Sessions end after
`SESSION_S`, and all of them with the token.
"""

from __future__ import annotations

import enum
import hashlib
import secrets
from typing import Final

from itsdangerous import BadSignature, TimestampSigner

COOKIE: Final = "holdfast_session"
SESSION_S: Final = 30 * 86400
"""How long a session lasts."""
MAX_WRONG: Final = 5
"""How many wrong tokens an address may show within `WINDOW_S`."""
WINDOW_S: Final = 60.0
MAX_CLIENTS: Final = 1000
"""Of so many addresses wrong tokens are remembered."""


class Shown(enum.Enum):
    """What a token that was shown is."""

    RIGHT = enum.auto()
    WRONG = enum.auto()
    TOO_MANY = enum.auto()
    """It was not looked at: too many before it were wrong."""


class Access:
    """Knows the token.

    Args:
        token: The token.
    """

    def __init__(self, token: str) -> None:
        self._token = token.encode()
        self._signer = TimestampSigner(
            token, salt="holdfast dashboard", key_derivation="hmac", digest_method=hashlib.sha256
        )
        self._wrong: dict[str, list[float]] = {}

    def check(self, shown: str, client: str, now: float) -> Shown:
        """Compare a token with the right one.

        Args:
            shown: The token.
            client: The address of the visitor.
            now: Seconds of a clock that does not go back.
        """
        wrong = [at for at in self._wrong.pop(client, []) if at > now - WINDOW_S]
        if len(wrong) >= MAX_WRONG:
            self._wrong[client] = wrong
            return Shown.TOO_MANY
        if secrets.compare_digest(shown.encode(), self._token):
            return Shown.RIGHT
        if len(self._wrong) >= MAX_CLIENTS:
            self._wrong.pop(next(iter(self._wrong)))
        self._wrong[client] = [*wrong, now]
        return Shown.WRONG

    def new_session(self) -> str:
        """The value of a cookie that proves that the token was shown."""
        return str(self._signer.sign(secrets.token_urlsafe(16)), "ascii")

    def is_session(self, cookie: str | None) -> bool:
        """Whether a cookie proves that."""
        try:
            self._signer.unsign(cookie or "", max_age=SESSION_S)
        except BadSignature:
            return False
        return True
