"""Node: the part of one host in the election of its run's leader, and in its journal.

    command ── announce, leave ────────────▶ node ◀── nodes of other hosts, or etcd
            ◀─ leads, coordinator, entries ──
    coordinator ── JournalRequest ─▶ node
                ◀─ JournalAnswer ───

It is a thread of the command of this host, which starts and ends the coordinator as the node says.
What elects, and where the journal is, the subclasses decide.

Leader. An election makes one node the leader. The leader before may not know of it yet, but it can
append nothing any more. The descriptor of the node is readable after every change; the command
looks at `leads`. `times_led` tells it that the node has stepped down and led again between two
looks.

Journal. A coordinator is served over a socket of its own while this node leads. With the leadership
the socket ends too: the coordinator may lack entries of a leader in between. An append is answered
once the entry cannot be lost, a read once the entries that are under way are among those that it
returns.

Threads. The command calls from its own thread, and the work is done in the node's, in order. Once
that has ended, `_call` returns False, so that a caller can free what it has passed.

Failure. A node that fails leads no longer, ends its thread with a traceback, and says so in
`take_news`. To the other hosts this host is then lost.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final

from holdfast.errors import HoldfastError
from holdfast.wire.node_messages import MAX_LINE_BYTES, JournalAnswer, JournalRequest

CLOSE_TIMEOUT_S: Final = 5.0


class Node(ABC):
    """The node of this host, from `start` to `close`.

    Attributes:
        name: The name of the node, which no other ever has or had.
        entries: The entries of the journal that are committed, as far as this host knows.
        times_led: Number of times that it has begun to lead.
        coordinator: Address and port where hosts join, as the newest leader has announced; empty if
            no other leader than the first has announced anything.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.entries: tuple[str, ...] = ()
        self.times_led = 0
        self.coordinator = ""
        self._leads = False
        self._hosts: Mapping[str, str] = {}
        self._journals: set[asyncio.Task[None]] = set()  # each serves one to a coordinator
        self._news = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._finished: asyncio.Future[None] = self._loop.create_future()
        self._thread = threading.Thread(target=self._run, name="consensus", daemon=True)
        self._has_begun = False
        self._has_failed = False
        self._is_closed = False
        self._calls = threading.Lock()
        self._takes_calls = True

    def start(self) -> None:
        """Start the thread, unless that was done."""
        if not self._has_begun:
            self._has_begun = True
            self._thread.start()

    def fileno(self) -> int:
        """A descriptor that `select` finds readable once something has changed."""
        return self._news

    @property
    def leads(self) -> bool:
        """True while this host leads: the coordinator runs here."""
        return self._leads

    @property
    def has_led(self) -> bool:
        """True if it leads, or has led."""
        return self.times_led > 0

    @property
    def is_deposed(self) -> bool:
        """True if it has led, and will not lead again by itself."""
        return self.has_led and not self._leads

    @property
    def has_others(self) -> bool:
        """True if this node leads, and another host that takes part has a node."""
        return self._leads and not set(self._hosts.values()) <= {self.name}

    def take_news(self) -> None:
        """Make the descriptor unreadable until something changes again.

        Raises:
            HoldfastError: The node has failed.
        """
        with suppress(BlockingIOError):
            os.eventfd_read(self._news)
        if self._has_failed:
            raise HoldfastError(
                "the node that keeps the run's journal on this host failed: report this bug with "
                "the traceback above; take part in the run again by `holdfast agent`"
            )

    def serve_journal(self, connection: socket.socket) -> None:
        """Serve the journal to a coordinator of this host, until that or the leadership ends.

        Args:
            connection: To the coordinator; closed in the end.
        """
        if not self._call(lambda: self._serve_journal(connection)):
            connection.close()

    @abstractmethod
    def announce(self, address: str, told: Iterable[str]) -> None:
        """Tell other nodes where the coordinator is, until their hosts take part, while this host
        leads.

        Args:
            address: Address and port where hosts join.
            told: The nodes.
        """

    @abstractmethod
    def leave(self) -> None:
        """Have another host lead, if this one does and another can."""

    def close(self) -> None:
        """End the node, once or again."""
        if self._is_closed:
            return
        self._is_closed = True
        self.start()
        self._call(self._finish)
        self._thread.join(CLOSE_TIMEOUT_S)
        if not self._thread.is_alive():  # else it may still write
            os.close(self._news)

    def _call(self, work: Callable[[], Coroutine[Any, Any, None]]) -> bool:
        """Do something in the thread; returns False if that has ended.

        What is called must not have an entry among its arguments: asyncio would log these.
        """
        with self._calls:
            if self._takes_calls:
                self._loop.call_soon_threadsafe(lambda: self._spawn(work()))
            return self._takes_calls

    # In the thread.

    @abstractmethod
    async def _open(self) -> None:
        """Begin to take part."""

    @abstractmethod
    async def _end(self) -> None:
        """Take part no more."""

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        except BaseException:
            self._has_failed = True
            raise
        finally:
            self._leads = False
            self._loop.close()
            self._notify()

    async def _serve(self) -> None:
        """Serve until `close`, or until one of the tasks fails, and raise its error."""
        try:
            await self._open()
            await self._finished
        finally:
            await self._end()
            with self._calls:
                self._takes_calls = False
            # What was called before becomes a task, and begins: it may own a connection.
            for _ in range(2):
                await asyncio.sleep(0)
            while ending := asyncio.all_tasks() - {asyncio.current_task()}:
                for task in ending:
                    task.cancel()
                await asyncio.gather(*ending, return_exceptions=True)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Begin a task, whose error ends the node."""
        task = self._loop.create_task(work)
        self._tasks.add(task)  # else nothing holds it
        task.add_done_callback(self._on_done)
        return task

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not self._finished.done():
            self._finished.set_exception(error)

    async def _finish(self) -> None:
        if not self._finished.done():
            self._finished.set_result(None)

    def _set_leads(self, *, leads: bool) -> None:
        self._hosts = {}
        self._leads = leads
        self.times_led += leads
        # A coordinator that knows nothing of the next leader's entries asks no more, even if this
        # host leads again before its command looks.
        for journal in self._journals:
            journal.cancel()
        self._notify()

    def _notify(self) -> None:
        os.eventfd_write(self._news, 1)

    # The journal.

    async def _serve_journal(self, connection: socket.socket) -> None:
        with connection:
            if not self._leads:
                return
            task = asyncio.current_task()
            assert task is not None
            self._journals.add(task)  # ends with the leadership
            reader, writer = await asyncio.open_connection(sock=connection, limit=MAX_LINE_BYTES)
            try:
                while line := await reader.readline():
                    answer = await self._answer_to(JournalRequest.model_validate_json(line))
                    writer.write(answer.model_dump_json().encode() + b"\n")
            except (OSError, ValueError):
                return  # the coordinator has ended
            finally:
                self._journals.discard(task)
                writer.transport.abort()

    async def _answer_to(self, request: JournalRequest) -> JournalAnswer:
        if request.hosts is not None:
            self._on_hosts(request.hosts)
        if request.append is not None:
            await self._commit(request.append)
            return JournalAnswer()
        # A coordinator that has ended may have proposed entries that are not committed yet. Its
        # successor must know them: it would decide the same again, and differently.
        await self._settle()
        return JournalAnswer(entries=self.entries)

    def _on_hosts(self, hosts: Mapping[str, str]) -> None:
        """Take note of the hosts that take part."""
        self._hosts = hosts

    @abstractmethod
    async def _commit(self, entry: str) -> None:
        """Append an entry to the journal, and wait until it can no longer be lost."""

    @abstractmethod
    async def _settle(self) -> None:
        """Wait until what is being appended is in `entries`."""
