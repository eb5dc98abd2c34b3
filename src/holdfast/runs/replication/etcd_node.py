"""EtcdNode: the part of one host in a run whose leader and journal are in etcd.

    node ── looks, or renews its lease ──▶ etcd ◀── nodes of other hosts

All nodes look at the keys a few times per second. When there is no leader, each of them tries to
become that, and one does. A leader counts its lease from before it asked for it, so by its own
clock it has stepped down before etcd lets another one lead.

Silence. If etcd does not answer, a leader steps down before its lease ends, and its command ends
the coordinator. Workers train on meanwhile. Once etcd answers, the node leads again if its lease
still holds; else the first node to take the free leader key leads. A node that has led and hears
nothing for `SILENT_LIMIT_S`, or finds another leader, is deposed: its command waits no longer.

Writes. An entry is written until etcd answers, while this node leads. A write whose answer was lost
may have been done; the journal recognizes its own entry and takes it for written.

End. A leader that leaves gives up its lease at once, so that another node need not wait for its
end. If the run is over, or no other host was there to continue it, it removes all keys.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from holdfast.coordinator.replicated_journal import records_in
from holdfast.core.actions import RunEnded
from holdfast.errors import HoldfastError
from holdfast.job.settings import EtcdSettings
from holdfast.rundir.run_directory import run_id_of
from holdfast.runs.replication.etcd_journal import LEASE_S, EtcdJournal, JournalView
from holdfast.runs.replication.host_node import Node

LOOK_S: Final = 0.3
"""Interval at which a node looks, or renews its lease, seconds."""
MARGIN_S: Final = 0.5
"""Time before the end of its lease at which a leader steps down, seconds."""
SILENT_LIMIT_S: Final = 600.0
"""Time that a node which has led waits for etcd, to lead again."""
END_TIMEOUT_S: Final = 2.0
"""Time in which the keys of a run that is over are removed."""


def prefix_of(run_dir: Path, attempt: str) -> str:
    """Prefix of the keys of one start of a run."""
    return f"/holdfast/{run_id_of(run_dir)}/{attempt}/"


class EtcdNode(Node):
    """The node of this host, from `start` to `close`.

    Args:
        settings: The cluster.
        prefix: Prefix of the keys of this start of the run.
        address: Address of this host, for its name.
        first: The first entry of the journal if this host begins the run: it leads at once.

    Raises:
        JobError: A file of the settings cannot be used.
        HoldfastError: This host begins the run, and etcd does not answer.
    """

    def __init__(
        self, settings: EtcdSettings, prefix: str, address: str, first: str | None = None
    ) -> None:
        name = f"{secrets.token_hex(8)}@{address}"
        asked_at = time.monotonic()
        self._journal = EtcdJournal(settings, prefix)
        self._lease = "" if first is None else self._journal.lease()
        view = None if first is None else self._journal.begin(name, self._lease, first)
        super().__init__(name)
        self._valid_until = -math.inf
        self._revision = 0
        self._is_leaving = False
        self._is_deposed = False
        self._writing = asyncio.Lock()
        if view is not None:
            self._take_in(view)
            self._lead(view, asked_at)

    @property
    def is_deposed(self) -> bool:
        """Implements `Node.is_deposed`."""
        return self._is_deposed or (self._is_leaving and self.has_led)

    def announce(self, address: str, _told: Iterable[str]) -> None:
        """Implements `Node.announce`: all nodes read it in etcd."""
        self.coordinator = address
        self._call(lambda: self._announce(address))

    def leave(self) -> None:
        """Implements `Node.leave`."""
        self._call(self._leave)

    # In the thread.

    async def _open(self) -> None:
        self._spawn(self._take_part())

    async def _end(self) -> None:
        await self._leave()

    async def _take_part(self) -> None:
        while not self._is_leaving:
            with suppress(HoldfastError):  # etcd does not answer, or refuses
                await (self._renew() if self._leads else self._look())
            silent_s = time.monotonic() - self._valid_until
            if self.has_led and silent_s > SILENT_LIMIT_S:
                self._is_deposed = True
            await asyncio.sleep(LOOK_S)

    async def _look(self) -> None:
        """Lead if this node has become the leader, or try to become it if there is none."""
        view = await asyncio.to_thread(self._journal.view, len(self.entries))
        self._take_in(view)
        # The key that this node has asked for at an earlier look is its own: it leads, if the lease
        # still holds.
        if view.leader == self.name and view.lease == self._lease:
            asked_at = time.monotonic()
            if await asyncio.to_thread(self._journal.renew, self._lease):
                self._lead(view, asked_at)
        elif not view.leader and view.has_journal:
            self._lease = await asyncio.to_thread(self._journal.lease)
            await asyncio.to_thread(self._journal.take, self.name, self._lease)

    def _take_in(self, view: JournalView) -> None:
        """Take over what others have written."""
        self.entries += view.entries
        is_moved = view.coordinator != self.coordinator
        self.coordinator = view.coordinator
        is_replaced = view.leader not in ("", self.name) or not view.has_journal
        self._is_deposed = self.has_led and is_replaced
        if view.entries or is_moved:
            self._notify()

    def _lead(self, view: JournalView, asked_at: float) -> None:
        if not self._is_leaving:
            self._revision = view.revision
            self._valid_until = asked_at + LEASE_S - MARGIN_S
            self._set_leads(leads=True)

    async def _renew(self) -> None:
        asked_at = time.monotonic()
        try:
            async with asyncio.timeout(self._valid_until - asked_at):
                is_valid = await asyncio.to_thread(self._journal.renew, self._lease)
        except TimeoutError:
            is_valid = False
        if is_valid:
            self._valid_until = asked_at + LEASE_S - MARGIN_S
        elif self._leads:
            self._set_leads(leads=False)

    async def _commit(self, entry: str) -> None:
        async with self._writing:
            number = len(self.entries) + 1
            await self._write(lambda revision: self._journal.append(revision, number, entry))
            self.entries += (entry,)
            self._notify()

    async def _settle(self) -> None:
        # An entry that is being written holds the lock until it is in `entries`.
        async with self._writing:
            return

    async def _announce(self, address: str) -> None:
        with suppress(ConnectionError):
            await self._write(lambda revision: self._journal.announce(revision, address))

    async def _write(self, write: Callable[[int], bool]) -> None:
        """Write until etcd answers, while this node leads.

        Args:
            write: Writes, given the revision of the leader; returns False if that is replaced.

        Raises:
            ConnectionError: This node leads no longer.
        """
        revision = self._revision
        while self._leads_at(revision):
            try:
                is_written = await asyncio.to_thread(write, revision)
            except HoldfastError:
                await asyncio.sleep(LOOK_S)
                continue
            # What was written while this node stepped down, all find when they look.
            if is_written and self._leads_at(revision):
                return
            if not is_written and self._leads_at(revision):
                self._set_leads(leads=False)
        raise ConnectionError("this host leads no longer")

    def _leads_at(self, revision: int) -> bool:
        return self._leads and self._revision == revision

    async def _leave(self) -> None:
        """Lead no more, and have others lead at once, or remove the keys if there are none."""
        self._is_leaving = True
        has_led = self._leads
        if has_led:
            self._set_leads(leads=False)
        with suppress(HoldfastError, TimeoutError):  # then the lease ends by itself
            # An earlier call, which has the lock, ends first.
            async with asyncio.timeout(END_TIMEOUT_S), self._writing:
                if has_led and self._is_over():
                    await asyncio.to_thread(self._journal.remove, self._revision)
                if has_led:
                    await asyncio.to_thread(self._journal.revoke, self._lease)

    def _is_over(self) -> bool:
        """True if the run has ended, or no other host was there to continue it."""
        records = records_in(self.entries)
        present = [each.present.nodes for each in records if each.present is not None]
        has_others = bool(present) and not set(present[-1].values()) <= {self.name}
        return not has_others or any(isinstance(each.decision, RunEnded) for each in records)
