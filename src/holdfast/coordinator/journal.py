"""Journal: the facts that outlive the coordinator, in an SQLite database."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Final, Self

from pydantic import ValidationError

from holdfast.core.actions import GenerationOpened, JournalEntry, RunEnded
from holdfast.errors import HoldfastError
from holdfast.wire.messages import Message

FOLD_EVERY: Final = 200
"""Facts after which SQLite's write-ahead log is folded into the database.

By itself SQLite folds it after a thousand pages, and then leaves it lying there until the next
write. If a disk loses the end of the log in that state, what is left of it hides newer pages of the
database, which is then malformed. So we fold it ourselves, and empty it at once.
"""


class _Row(Message):
    """How a fact is written down."""

    fact: GenerationOpened | RunEnded


class Journal:
    """One run's; synced with every fact.

    Args:
        path: The database; made if it is not there.

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
                "CREATE TABLE IF NOT EXISTS facts (number INTEGER PRIMARY KEY, fact TEXT)"
            )
        except sqlite3.Error as error:
            raise self._broken(error) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()

    def entries(self) -> list[JournalEntry]:
        """All that was recorded, oldest first.

        Raises:
            HoldfastError: The journal is damaged.
        """
        try:
            rows = self._database.execute("SELECT fact FROM facts ORDER BY number").fetchall()
            return [_Row.model_validate_json(text).fact for (text,) in rows]
        except (sqlite3.Error, ValidationError) as error:
            raise self._broken(error) from None

    def append(self, fact: JournalEntry) -> None:
        """Make `fact` durable.

        Raises:
            HoldfastError: The disk is full or gone.
        """
        text = _Row(fact=fact).model_dump_json()
        try:
            self._database.execute("INSERT INTO facts (fact) VALUES (?)", (text,))
            self._unfolded += 1
            if self._unfolded == FOLD_EVERY:
                self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                self._unfolded = 0
        except sqlite3.Error as error:
            raise self._broken(error) from None

    def _broken(self, error: Exception) -> HoldfastError:
        return HoldfastError(
            f"{self._path}: {error}; mend the disk and resume the run from its last checkpoint"
        )
