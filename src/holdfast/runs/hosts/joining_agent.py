"""Joined: an agent and its workers for a run that another host has started.

join ─▶ agent, workers ─▶ the run is over, or this host was taken for lost ─▶ join again

If the coordinator's host is lost, this one may take over the coordinator (`succession`).
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Final

from holdfast.clusters.engines.engine import OVER, TAKEN_AWAY, begin, read_token, tell_engine
from holdfast.core.placement.replacing import RejoinDelay
from holdfast.core.protocol import LEFT
from holdfast.errors import HoldfastError, Interrupted, JobError
from holdfast.hardware.profile_file import Profiles
from holdfast.launch.spawn import Spawned
from holdfast.linux.lifeline import active_stop_signals, handling
from holdfast.runs.hosts.endpoint import address_towards
from holdfast.runs.hosts.joined_host import ENDED, JoinedHost, Say, Serving
from holdfast.runs.hosts.succession import Attend
from holdfast.wire.join import NoRun, join

JOIN_TIMEOUT_S: Final = 60.0
"""Time to wait for a coordinator at first."""
PLACED_TIMEOUT_S: Final = 20.0
"""The same if an engine has placed the agent: its coordinator is there. The agent then ends early,
so that a run whose coordinator cannot be reached says that, and ends.
"""


def serve(
    coordinator: str,
    token_file: Path | None,
    say: Say,
    address: str = "",
    run_dir: Path | None = None,
    *,
    placed: str = "",
    spawned: Spawned | None = None,
    profile: Profiles | None = None,
    serving: Serving | None = None,
    attend: Attend,
) -> None:
    """Work for a run until it is over.

    Args:
        coordinator: Its address and port.
        token_file: Holds the token; see `placed`.
        say: Tells the user something.
        address: Address of the interface on which workers accept other hosts; by default that of
            the route to the coordinator.
        run_dir: The run's directory on this host, which may hold checkpoints of the run already; by
            default one below `runs/` with the name that it has on the coordinator's host.
        placed: The name of this agent, if an engine has placed it here. Then its token comes from
            standard input, and it ends when that is closed, not by a signal: those announce that
            the host will be taken away. Its run directory is one of its user's that no other agent
            uses.
        spawned: The process of a fork server, if it has been started.
        profile: Speeds of this host; None for what the run was given, or measures.
        serving: Serves the metrics of this host; None: nothing does.
        attend: Makes the watcher of the run, if this host takes over its coordinator.

    Raises:
        JobError: The run cannot be joined.
        Interrupted: A signal has ended it, or the run.
        HoldfastError: The workers of this host cannot be started, or the run has failed.
    """
    token = read_token(None if placed else token_file)
    hostname = placed or socket.gethostname()
    if not address:
        address = _route_to(coordinator)
        say(f"workers use {address}, the address of the route to {coordinator}")
    with _stop_requested(is_placed=bool(placed)) as stop:
        if placed:
            begin(partial(stop.append, True))
        timeout_s = PLACED_TIMEOUT_S if placed else JOIN_TIMEOUT_S
        joined = join(coordinator, token, hostname, timeout_s, None)
        delay = RejoinDelay()
        delay_s = 0.0
        with closing(
            JoinedHost(
                coordinator,
                address,
                run_dir,
                spawned,
                profile,
                serving,
                attend,
                is_placed=bool(placed),
            )
        ) as host:
            while True:
                host.rest(delay_s, stop)
                began = time.monotonic()
                was_told = host.work(joined, say, stop)
                served_s = time.monotonic() - began
                if stop and not was_told:
                    raise Interrupted(ENDED)
                if stop:
                    say(LEFT)
                    return
                # From now on the certificate stands for the token, which may be used up.
                before = joined.credentials.agent
                delay_s = delay.after(served_s) if was_told else 0.0
                try:
                    joined = host.join_again(token, hostname, before, stop, was_told=was_told)
                except NoRun:
                    host.finish(stop)
                    break
    if placed:
        tell_engine(OVER)
    elif host.failure:
        raise HoldfastError(f"the run has failed: {host.failure}")
    elif host.was_stopped:
        raise Interrupted("the run was stopped; join again once it is continued")
    say("the run is over")


def _route_to(coordinator: str) -> str:
    host, _, port = coordinator.rpartition(":")
    if not (host and port.isdecimal()):
        raise JobError(f"--join {coordinator}: give the address and port that the run has printed")
    try:
        return address_towards(host, int(port))
    except OSError as error:
        raise JobError(f"{host} cannot be reached: {error.strerror or error}") from None


@contextmanager
def _stop_requested(*, is_placed: bool) -> Iterator[list[bool]]:
    """A list that is not empty once a signal has asked for the end.

    Args:
        is_placed: True if an engine decides that instead: it is given the signal.
    """
    requested: list[bool] = []

    def stop(_number: int, _frame: FrameType | None) -> None:
        if is_placed:
            tell_engine(TAKEN_AWAY)
        else:
            requested.append(True)

    with handling(active_stop_signals(), stop):
        yield requested
