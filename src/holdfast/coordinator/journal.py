"""Journal: the entries of a run on one host that outlive its coordinator, in an SQLite database.

A run on several hosts has a `ReplicatedJournal` instead.
"""

from __future__ import annotations

import errno
import os
import sqlite3
from pathlib import Path
from typing import Final, Self

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


class _Row(Message):
    """An entry as JSON."""

    entry: GenerationOpened | RunEnded


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
        try:
            rows = self._database.execute("SELECT entry FROM entries ORDER BY number").fetchall()
            return [_Row.model_validate_json(text).entry for (text,) in rows]
        except (sqlite3.Error, ValidationError) as error:
            raise self._broken(error) from None

    def append(self, entry: JournalEntry) -> None:
        """Make `entry` durable.

        Raises:
            HoldfastError: The disk is full or unreachable.
        """
        try:
            row = _Row(entry=entry).model_dump_json()
            self._database.execute("INSERT INTO entries (entry) VALUES (?)", (row,))
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
