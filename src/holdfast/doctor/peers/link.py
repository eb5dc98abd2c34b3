"""Link: how well one host reaches another; measured by `doctor.peers.link_server`."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Reach(enum.StrEnum):
    """The result of an attempt to connect."""

    REACHED = "reached"
    SILENT = "silent"
    """Nothing came back."""
    REFUSED = "refused"
    """Something answers there that accepts no connection."""
    NO_ROUTE = "no route"
    UNLIKE = "unlike"
    """What answers there is no host of this check."""
    LOST = "lost"
    """The host that was to connect has not said whether it could."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A link in one direction, in which connections are made and bytes are sent.

    Attributes:
        source, target: The hosts.
        reach: Whether the one has reached the other.
        why: The error, if it has not.
        latency_s: Seconds until an answer comes back; 0 if not reached.
        bytes_per_s: Sent and encrypted by one connection; 0 if not reached.
    """

    source: str
    target: str
    reach: Reach
    why: str = ""
    latency_s: float = 0.0
    bytes_per_s: float = 0.0
