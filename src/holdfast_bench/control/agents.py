"""The process of some of the agents: it lets them join, and then plays all of them.

Commands come as lines of JSON, and reports go back likewise:

    parent ── connect, count, fail, kill ─▶ this process
           ◀─ joined, resumed, counted ────
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from holdfast.linux.lifeline import die_with_parent, leave_signals_to_parent
from holdfast.wire.join import Joined, control_address, join
from holdfast.wire.token import Token
from holdfast_bench.control.agent import ASKED_EVERY, PlayedAgent

JOIN_TIMEOUT_S: Final = 60.0
SAID_EVERY: Final = 25
"""Hosts that join between two reports of it."""


def main(words: Sequence[str]) -> int:
    """Play agents until the parent has no more commands; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--coordinator", required=True)
    parser.add_argument("--token-file", type=Path, required=True)
    parser.add_argument("--first", type=int, required=True)
    parser.add_argument("--agents", type=int, required=True)
    parser.add_argument("--heartbeat-s", type=float, required=True)
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    options = parser.parse_args(words)
    die_with_parent(options.parent)
    leave_signals_to_parent()
    with socket.socket(fileno=options.fd) as parent:
        token = Token.parse(options.token_file.read_text(encoding="ascii").strip())
        joined: list[tuple[Joined, float]] = []
        for number in range(options.agents):
            name = f"bench{options.first + number}"
            answer = join(options.coordinator, token, name, JOIN_TIMEOUT_S, None)
            joined.append((answer, time.monotonic()))
            if len(joined) % SAID_EVERY == 0 or len(joined) == options.agents:
                parent.sendall(_line(joined=len(joined)))
        asyncio.run(_Agents(options, joined).serve(parent))
    return os.EX_OK


class _Agents:
    """The agents of this process."""

    def __init__(self, options: argparse.Namespace, joined: Sequence[tuple[Joined, float]]) -> None:
        control = control_address(options.coordinator)
        self._living = [
            PlayedAgent(
                each,
                control,
                options.heartbeat_s,
                began,
                place * ASKED_EVERY // len(joined),
                self._on_resumed,
            )
            for place, (each, began) in enumerate(joined)
        ]
        self._tasks: dict[PlayedAgent, asyncio.Task[None]] = {}
        self._resumed = Counter[int]()
        self._parent: asyncio.StreamWriter | None = None

    async def serve(self, parent: socket.socket) -> None:
        """Do what the parent says, until it says no more."""
        commands, self._parent = await asyncio.open_unix_connection(sock=parent)
        while line := await commands.readline():
            await self._do(json.loads(line)["do"])
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _do(self, command: str) -> None:
        first = self._living[0]
        match command:
            case "connect":
                self._tasks = {each: asyncio.create_task(each.run()) for each in self._living}
            case "count":
                self._say(
                    counted=sum(each.sent for each in self._living),
                    broken=sum(each.broken for each in self._living),
                    delays=[delay for each in self._living for delay in each.delays],
                )
                for each in self._living:
                    each.delays.clear()
            case "fail":
                self._say(began=time.monotonic(), host=first.name)
                first.fail_worker()
            case "kill":
                self._living.remove(first)
                self._say(began=time.monotonic(), host=first.name)
                self._tasks[first].cancel()

    def _on_resumed(self, generation: int) -> None:
        """Say when all agents of this process were resumed."""
        self._resumed[generation] += 1
        if self._resumed[generation] == len(self._living):
            self._say(resumed=generation, at=time.monotonic())

    def _say(self, **values: Any) -> None:
        assert self._parent is not None
        self._parent.write(_line(**values))


def _line(**values: Any) -> bytes:
    return json.dumps(values).encode() + b"\n"
