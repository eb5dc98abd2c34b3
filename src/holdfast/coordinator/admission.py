"""Admission: who may talk to the coordinator of a run from another host, and as what.

A token, which is printed where the run was started, lets a host join. Agents of this host connect
through a Unix socket that only its owner can open, and need none.
"""

from __future__ import annotations

import hmac
import re
import secrets
from typing import Any

from holdfast.wire.rpc import TOKEN_KEY


class Admission:
    """The admission of one run.

    Args:
        secret: What tokens and keys are derived from; empty if the run has one host.
    """

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def admits(self, context: Any) -> bool:
        """Whether the peer of a call is on this host, or has the token."""
        if self.is_local(context):
            return True
        given = dict(context.invocation_metadata() or ()).get(TOKEN_KEY, "")
        return bool(self._secret) and hmac.compare_digest(str(given), token_of(self._secret))

    @staticmethod
    def is_local(context: Any) -> bool:
        """Whether the peer of a call is on this host."""
        return str(context.peer()).startswith("unix:")

    @staticmethod
    def name_of(hostname: str) -> str:
        """A name for a new agent on a host, which was never used before, not even by an earlier
        coordinator of the run.
        """
        plain = re.sub(r"[^A-Za-z0-9-]", "-", hostname)[:40] or "host"
        return f"{plain}-{secrets.token_hex(4)}"

    def key_of(self, generation: int) -> str:
        """What only the members of a generation know, hexadecimal."""
        return _derived(self._secret, f"generation {generation}")


def token_of(secret: bytes) -> str:
    """The token with which a host joins."""
    return f"hf1.{_derived(secret, 'join')}"


def _derived(secret: bytes, purpose: str) -> str:
    return hmac.digest(secret, purpose.encode(), "sha256").hex()
