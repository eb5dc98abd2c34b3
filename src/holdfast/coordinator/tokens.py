"""Tokens: which ones a run has issued, and how often they were used.

A token is issued by a command on the run's own host, which adds a line to a file of the run; the
file holds a digest of the secret. The coordinator reads that file, and keeps the uses in its
journal.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from holdfast.coordinator.authority import Authority
from holdfast.coordinator.refusals import Refused
from holdfast.strict import Strict
from holdfast.wire.token import Token

VALID_S: Final = 3600.0
"""Time that a token can be used."""
_ISSUED: Final = "tokens.jsonl"
_MAKE: Final = "make another one by `holdfast token` on the run's first host"


class IssuedToken(Strict):
    """A token as its run remembers it.

    Attributes:
        digest: Defined in `Token.digest`.
        uses: Number of hosts that may join with it.
        expires_unix_s: End of its validity.
    """

    digest: str
    uses: int
    expires_unix_s: float


def issue(folder: Path, authority: Authority, now: float, uses: int = 1) -> Token:
    """Issue a token.

    Args:
        folder: With the run's secrets.
        authority: Authority of this start of the run.
        now: Unix seconds.
        uses: Number of hosts that may join with it.
    """
    token = Token(
        run=authority.run,
        secret=secrets.token_urlsafe(32),
        coordinator=authority.coordinator.digest,
    )
    issued = IssuedToken(digest=token.digest, uses=uses, expires_unix_s=now + VALID_S)
    fd = os.open(folder / _ISSUED, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(issued.model_dump_json().encode() + b"\n")
    return token


def forget(folder: Path) -> None:
    """Forget the tokens of earlier starts of the run, which name another authority."""
    (folder / _ISSUED).unlink(missing_ok=True)


def check(folder: Path, token: Token, run: str, used: Iterable[str], now: float) -> None:
    """Check that a host may join with a token.

    Args:
        folder: With the run's secrets.
        token: Token that the host has shown.
        run: The id of this start of the run.
        used: The digest of the token of each host that has joined so far.
        now: Unix seconds.

    Raises:
        Refused: It may not.
    """
    if token.run != run:
        raise Refused("the token of another run", "take the token file of this one")
    issued = _find(folder, token.digest)
    if issued is None:
        raise Refused("an unknown token", "take the newest token file of the run")
    if sum(each == issued.digest for each in used) >= issued.uses:
        raise Refused("a used token", _MAKE)
    if now > issued.expires_unix_s:
        raise Refused("an expired token", _MAKE)


def _find(folder: Path, digest: str) -> IssuedToken | None:
    try:
        lines = (folder / _ISSUED).read_text(encoding="ascii").splitlines()
    except FileNotFoundError:
        return None
    for line in lines:
        # How long it takes tells a stranger nothing about the digests that are kept.
        if secrets.compare_digest(json.loads(line)["digest"], digest):
            return IssuedToken.model_validate_json(line)
    return None
