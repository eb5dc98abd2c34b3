"""The run's log of events: one JSON object a line, for what happens rarely and matters."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Self


class EventLog:
    """Appends to `events.jsonl`."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8", buffering=1)

    def write(self, event: str, **fields: object) -> None:
        """Note that `event` has happened now."""
        line = {"time_unix_s": round(time.time(), 6), "event": event, **fields}
        self._file.write(json.dumps(line) + "\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
