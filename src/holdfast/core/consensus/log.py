"""The replicated log of one host: its entries, and the voters that they say.

A log is a value: a change makes another one. The journal of a run has a few hundred entries, so
there are no snapshots.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

MAX_BATCH: Final = 64
"""Entries of one message."""


@dataclass(frozen=True, slots=True)
class ReplicatedEntry:
    """An entry of the log. One with neither payload nor voters begins a term (no-op).

    Attributes:
        term: Term of the leader that has appended it.
        payload: Decision of the coordinator, encoded; None in an entry of consensus itself.
        voters: The hosts that vote from here on (configuration); empty if they stay as they are.
    """

    term: int
    payload: str | None = None
    voters: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ReplicatedLog:
    """The entries of one host; the first has index 1.

    Attributes:
        entries: All of them, oldest first.
        voters: The hosts that vote by the newest configuration; empty if there is none.
        voters_index: The index of that configuration.
    """

    entries: tuple[ReplicatedEntry, ...] = ()
    voters: tuple[str, ...] = ()
    voters_index: int = 0

    @property
    def last_index(self) -> int:
        """The index of the newest entry; 0 if there is none."""
        return len(self.entries)

    @property
    def last_term(self) -> int:
        """The term of the newest entry."""
        return self.term_of(self.last_index)

    def term_of(self, index: int) -> int:
        """The term of an entry; 0 for index 0."""
        return self.entries[index - 1].term if index else 0

    def contains(self, index: int, term: int) -> bool:
        """True if there is an entry with this index and term; then all before it match, too."""
        return index <= self.last_index and self.term_of(index) == term

    def is_newer_than(self, index: int, term: int) -> bool:
        """True if a log that ends with this entry lacks one of these (Raft, section 5.4.1)."""
        return (self.last_term, self.last_index) > (term, index)

    def append(self, *entries: ReplicatedEntry) -> ReplicatedLog:
        """The log with more entries."""
        return _log_of((*self.entries, *entries))

    def merge(self, index: int, entries: Sequence[ReplicatedEntry]) -> ReplicatedLog:
        """The log with a leader's entries after an index up to which the logs match."""
        # A message that was overtaken has only entries that are here, and takes nothing back.
        for number, entry in enumerate(entries, index + 1):
            if not self.contains(number, entry.term):
                # The first entry that differs goes, with all that follow it (section 5.3).
                return _log_of((*self.entries[: number - 1], *entries[number - index - 1 :]))
        return self


def _log_of(entries: tuple[ReplicatedEntry, ...]) -> ReplicatedLog:
    index = max((number for number, each in enumerate(entries, 1) if each.voters), default=0)
    voters = entries[index - 1].voters if index else ()
    return ReplicatedLog(entries, voters, index)
