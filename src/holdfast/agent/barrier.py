"""The checkpoint barrier: a checkpoint exists once the parts of all workers are on the disk."""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from holdfast.checkpoint import manifest, parts
from holdfast.checkpoint.manifest import Header, Manifest, Part
from holdfast.errors import ProtocolError
from holdfast.wire.messages import PartFailed, PartWritten


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """How a checkpoint went: its directory, or the reason why there is none; and whether that is
    news.
    """

    step: int
    directory: Path | None
    error: str | None
    new: bool = False


class CheckpointBarrier:
    """Collects the parts of one checkpoint at a time and commits it when all are there.

    Args:
        root: The directory of all checkpoints of the run.
        attempt: This start of the run.
        keep: Checkpoints to keep.
    """

    def __init__(self, root: Path, attempt: str, keep: int) -> None:
        self._root, self._keep = root, keep
        self._run_attempt = self._attempt = attempt
        self._generation = 0
        self._members: tuple[int, ...] = ()
        self._arrived: dict[int, PartWritten | PartFailed] = {}

    def begin(self, generation: int, members: tuple[int, ...]) -> None:
        """Expect parts from the members of a generation; those of older ones are of no use."""
        self._generation, self._members = generation, members
        self._attempt = manifest.attempt_in(generation, self._run_attempt)
        self._arrived.clear()
        with contextlib.suppress(OSError):  # what the generation before has left half written
            manifest.sweep(self._root)

    def arrive(self, message: PartWritten | PartFailed) -> Verdict | None:
        """Note a worker's part; the last one to come gives the verdict.

        Raises:
            ProtocolError: Workers are writing checkpoints of different steps.
        """
        if message.generation != self._generation:
            return None
        final = self._root / manifest.directory_name(message.step)
        if final.is_dir():  # committed, but not everybody heard of it before his generation ended
            return Verdict(step=message.step, directory=final, error=None)
        self._arrived[message.rank] = message
        steps = {part.step for part in self._arrived.values()}
        if len(steps) > 1:
            raise ProtocolError(f"workers write checkpoints of different steps: {sorted(steps)}")
        if self._arrived.keys() < set(self._members):
            return None
        arrived = [self._arrived[rank] for rank in self._members]
        self._arrived.clear()
        failed = [part for part in arrived if isinstance(part, PartFailed)]
        written = [part for part in arrived if isinstance(part, PartWritten)]
        if failed:
            return self._given_up(failed[0].step, f"rank {failed[0].rank}: {failed[0].reason}")
        record = _manifest(written)
        try:
            directory = manifest.commit(self._root, record, self._attempt)
        except OSError as error:
            return self._given_up(written[0].step, str(error))
        with contextlib.suppress(OSError):  # the next one tries again
            manifest.prune(self._root, self._keep, record.best)
        return Verdict(step=written[0].step, directory=directory, error=None, new=True)

    def _given_up(self, step: int, error: str) -> Verdict:
        """The failed attempt is removed, so that it does not also hold the space it lacked."""
        with contextlib.suppress(OSError):
            shutil.rmtree(self._root / manifest.temporary_name(step, self._attempt))
        return Verdict(step=step, directory=None, error=error)


def _manifest(written: list[PartWritten]) -> Manifest:
    try:
        header = Header.model_validate(written[0].header)
    except ValidationError as error:
        raise ProtocolError(f"rank {written[0].rank} sent no header: {error}") from None
    return Manifest(
        **header.model_dump(),
        root=parts.root([digest for part in written for digest in part.digests]),
        parts=tuple(
            Part(
                file=part.file,
                size_bytes=part.size_bytes,
                first_chunk=part.first_chunk,
                digests=part.digests,
            )
            for part in written
        ),
    )
