"""Claims: which CPUs, GPUs and how much memory of this host each run of this user has.

    ~/.local/state/holdfast/claims/HOST/
      PID-ID.json   a claim, or a ticket of a run that waits; its holder has locked it
      lock          held while claims are compared and changed

The kernel releases the lock of a holder that dies, however that happens: a file that is not locked
is no claim. Claims are of one user: in a directory of all users, anyone could lock or remove those
of others.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import socket
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter, ValidationError
from rich.filesize import decimal as in_words

from holdfast.core.placement.shares import Claim, Needs, Share, Shortage, Supply, divide, shortages
from holdfast.linux.lock import locked
from holdfast.rundir.run_directory import state_dir

LOCK_TIMEOUT_S: Final = 10.0
"""Comparing takes milliseconds."""
_LOCK: Final = "lock"
_FORMAT: Final = TypeAdapter(Claim)


def claims_here() -> list[Claim]:
    """All claims on this host.

    Raises:
        JobError: They are locked for too long.
        OSError: They cannot be read.
    """
    folder = _folder()
    if not folder.exists():
        return []
    with locked(folder / _LOCK, LOCK_TIMEOUT_S):
        return _living(folder)


def describe(lacking: Iterable[Shortage]) -> str:
    """Shortages in words, and who has the rest; empty without any."""
    return "; ".join(map(_in_words, lacking))


class HeldClaim:
    """Claim of one run on this host; this process holds it until it ends or calls `close`.

    Args:
        run: The name of its run directory.
        needs: Needs of the run.

    Attributes:
        shares: Shares of its workers, once it has begun.

    Raises:
        OSError: It cannot be written.
        JobError: The claims are locked for too long.
    """

    def __init__(self, run: str, needs: Needs) -> None:
        self.shares: tuple[Share, ...] = ()
        self._needs = needs
        self._folder = _folder()
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._path = self._folder / f"{os.getpid()}-{secrets.token_hex(4)}.json"
        with locked(self._folder / _LOCK, LOCK_TIMEOUT_S):
            last = max((claim.ticket for claim in _living(self._folder)), default=0)
            self._claim = Claim(
                run=run, pid=os.getpid(), ticket=last + 1, cpus=(), gpus=(), memory_bytes=0
            )
            self._file = self._path.open("xb", buffering=0)
            fcntl.flock(self._file, fcntl.LOCK_EX)
            self._write()

    def begin(self, supply: Supply) -> None:
        """Claim CPUs and GPUs, even if others use them, too."""
        with locked(self._folder / _LOCK, LOCK_TIMEOUT_S):
            self._begin(supply, self._others())

    def begin_if_free(self, supply: Supply, *, in_turn: bool) -> str:
        """Claim what is needed if all of it is free.

        Args:
            supply: Cores, memory and GPUs that this process may use.
            in_turn: True if runs that have waited for longer are first.

        Returns:
            What is lacking, in words; nothing if it has begun.
        """
        with locked(self._folder / _LOCK, LOCK_TIMEOUT_S):
            others = self._others()
            if lacking := describe(shortages(self._needs, supply, others)):
                return lacking
            waiting = [each for each in others if 0 < each.ticket < self._claim.ticket]
            if in_turn and waiting:
                first = min(waiting, key=lambda each: each.ticket)
                return f"its turn: run {first.run} (pid {first.pid}) waits for longer"
            self._begin(supply, others)
        return ""

    def close(self) -> None:
        """Release it."""
        self._path.unlink(missing_ok=True)
        self._file.close()

    def _begin(self, supply: Supply, others: list[Claim]) -> None:
        self.shares = divide(self._needs, supply, others)
        self._claim = replace(
            self._claim,
            ticket=0,
            cpus=tuple(cpu for share in self.shares for cpu in share.cpus),
            gpus=tuple(gpu for share in self.shares for gpu in share.gpus),
            memory_bytes=self._needs.workers * self._needs.memory_bytes,
        )
        self._write()

    def _others(self) -> list[Claim]:
        return _living(self._folder, but=self._path)

    def _write(self) -> None:
        self._file.seek(0)
        self._file.truncate()
        self._file.write(_FORMAT.dump_json(self._claim))


def _living(folder: Path, but: Path | None = None) -> list[Claim]:
    """The claims whose holders live; files of others are removed."""
    return [
        claim
        for path in sorted(folder.glob("*.json"))
        if path != but and (claim := _read(path)) is not None
    ]


def _read(path: Path) -> Claim | None:
    """The claim in a file; None if it has none, or its holder has ended."""
    with suppress(OSError), path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            with suppress(ValidationError):
                return _FORMAT.validate_json(file.read())
        else:
            path.unlink()
    return None


def _in_words(lacking: Shortage) -> str:
    def amount(number: int) -> str:
        return in_words(number) if lacking.what == "memory" else str(number)

    what = lacking.what[:-1] if lacking.what != "memory" and lacking.each == 1 else lacking.what
    of_each = f"{amount(lacking.each)}{' of' * (what == 'memory')} {what}"
    workers = f"each of {lacking.workers} workers" if lacking.workers > 1 else "one worker"
    free = (
        f"{amount(lacking.free)} of {amount(lacking.total)} {'is' if lacking.free == 1 else 'are'}"
    )
    held = ", ".join(
        f"run {claim.run} (pid {claim.pid}) has {amount(number)}" for claim, number in lacking.held
    )
    return f"{of_each} for {workers}; {free} free{': ' * bool(held)}{held}"


def _folder() -> Path:
    return state_dir() / "claims" / socket.gethostname()  # hosts may share a home
