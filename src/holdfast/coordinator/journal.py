"""Journal: the entries that outlive the coordinator, in an SQLite database."""

from __future__ import annotations

import errno
import os
import sqlite3
from pathlib import Path
from typing import Final, Self, TypeVar

from pydantic import ValidationError

from holdfast.core.actions import GenerationOpened, JournalEntry, RunEnded
from holdfast.errors import HoldfastError
from holdfast.wire.messages import Message

FOLD_EVERY: Final = 200
"""Number of entries after which SQLite's write-ahead log is folded into the database.

By itself SQLite folds the log after a thousand pages, and keeps it until the next write. If a disk
loses the end of the log in that state, the rest of it hides newer pages of the database, which is
then malformed. So we fold it ourselves, and truncate it at once.
"""


Entry = TypeVar("Entry", bound=Message)


class _Row(Message):
    """An entry as JSON."""

    entry: GenerationOpened | RunEnded


class HostAdmitted(Message):
    """A host of another machine was let in.

    Attributes:
        host: The name that its agent got.
        keys: The SHA-256 of its requests for certificates, hexadecimal.
        token: The digest of the token with which it joined; empty if it joined again.
    """

    host: str
    keys: str
    token: str


class Journal:
    """The journal of one run, synced with every entry.

    Args:
        path: The database; created if it is missing.

    Raises:
        HoldfastError: It cannot be opened, or is no journal.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._unfolded = 0
        try:
            self._database = sqlite3.connect(path, isolation_level=None)
            self._database.execute("PRAGMA journal_mode = WAL")
            self._database.execute("PRAGMA synchronous = FULL")
            self._database.execute("PRAGMA wal_autocheckpoint = 0")
            self._database.execute(
                "CREATE TABLE IF NOT EXISTS entries (number INTEGER PRIMARY KEY, entry TEXT)"
            )
            self._database.execute(
                "CREATE TABLE IF NOT EXISTS admissions (number INTEGER PRIMARY KEY, entry TEXT)"
            )
        except sqlite3.Error as error:
            raise self._broken(error) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()

    def entries(self) -> list[JournalEntry]:
        """All entries of the coordinator's machine, oldest first.

        Raises:
            HoldfastError: The journal is damaged.
        """
        return [row.entry for row in self._read("SELECT entry FROM entries ORDER BY number", _Row)]

    def append(self, entry: JournalEntry) -> None:
        """Make `entry` durable.

        Raises:
            HoldfastError: The disk is full or unreachable.
        """
        self._insert("INSERT INTO entries (entry) VALUES (?)", _Row(entry=entry))

    def admitted(self) -> list[HostAdmitted]:
        """All hosts that were let in, oldest first.

        Raises:
            HoldfastError: The journal is damaged.
        """
        return self._read("SELECT entry FROM admissions ORDER BY number", HostAdmitted)

    def admit(self, admitted: HostAdmitted) -> None:
        """Make it durable that a host was let in.

        Raises:
            HoldfastError: The disk is full or unreachable.
        """
        self._insert("INSERT INTO admissions (entry) VALUES (?)", admitted)

    def _read(self, query: str, kind: type[Entry]) -> list[Entry]:
        try:
            rows = self._database.execute(query).fetchall()
            return [kind.model_validate_json(text) for (text,) in rows]
        except (sqlite3.Error, ValidationError) as error:
            raise self._broken(error) from None

    def _insert(self, statement: str, entry: Message) -> None:
        try:
            self._database.execute(statement, (entry.model_dump_json(),))
            self._unfolded += 1
            if self._unfolded == FOLD_EVERY:
                self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                self._unfolded = 0
        except sqlite3.Error as error:
            raise self._broken(error) from None

    def _broken(self, error: Exception) -> HoldfastError:
        is_full = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
        why = os.strerror(errno.ENOSPC) if is_full else error
        return HoldfastError(
            f"{self._path} cannot be used: {why}; check the disk, then resume the run from its "
            "last checkpoint"
        )
