"""Joining of other hosts to a run of this one: its options, and the line to paste there."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from holdfast.errors import JobError
from holdfast.runs.hosts.endpoint import Endpoint, address_towards, make_secrets, make_token

Address = Annotated[
    str | None,
    typer.Option(help="Address of this host for the others; default: of the default route."),
]
Port = Annotated[
    int, typer.Option(min=1, max=65534, help="Port where others join; the next is used too.")
]


def host_range(option: str, value: str) -> dict[str, int]:
    """The keys in `N` or `MIN:MAX` hosts.

    Args:
        option: The option whose value it is, for the error.
        value: The value.

    Raises:
        JobError: It is neither.
    """
    least, colon, most = value.partition(":")
    numbers = [each for each in (least, most or least) if each.isdecimal()]
    if len(numbers) < 2 or bool(colon) != bool(most) or not 1 <= int(least) <= int(most or least):
        raise JobError(f"{option} {value}: give a number of hosts, or the fewest and the most: 2:4")
    return {"hosts": int(least), "max_hosts": int(most or least)}


def endpoint_at(address: str | None, port: int) -> Endpoint:
    """Endpoint that the others connect to.

    Raises:
        JobError: No address is given, and there is no default route.
    """
    return Endpoint(address=address or _default_address(), port=port)


def announcing(endpoint: Endpoint, others: int) -> Callable[[Path], AbstractContextManager[object]]:
    """The sidecar that says how so many other hosts join, once the run has its directory.

    Raises:
        JobError: The ports cannot be used.
    """
    endpoint.check_ports()
    return partial(_announced, endpoint, others)


@contextmanager
def _announced(endpoint: Endpoint, others: int, run_dir: Path) -> Iterator[None]:
    make_secrets(run_dir, endpoint)
    print(make_token(run_dir, others), file=sys.stderr, flush=True)
    yield


def _default_address() -> str:
    try:
        found = address_towards()
    except OSError:
        raise JobError(
            "this host has no default route, so its address is not known; give it by --address"
        ) from None
    print(f"this host is {found}, the address of its default route", file=sys.stderr)
    return found
