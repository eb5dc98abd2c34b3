"""Peers: who calls the coordinator, as its connection says."""

from __future__ import annotations

from typing import Any

from holdfast.wire.tls import Identity


def is_local(context: Any) -> bool:
    """True if the peer of a call is on this host."""
    return str(context.peer()).startswith("unix:")


def identity_of(context: Any) -> Identity | None:
    """Identity in the verified certificate of the peer of a call; None if there is none."""
    uris = context.auth_context().get("peer_uri", ())
    return Identity.of_uris(each.decode(errors="replace") for each in uris)


def is_agent_of(host: str, name: str) -> bool:
    """True if `host` is the name that an agent called `name` got when it joined."""
    return host == name or host.rpartition("-")[0] == name
