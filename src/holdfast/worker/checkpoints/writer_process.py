"""The writer: a process of each host that writes staged checkpoints to disk while workers train.

It is forked like a worker, and has the lowest priority for the processor and the disk: a checkpoint
is never urgent. It writes straight from the arena, past the page cache; see `linux.files`. In a
thread it verifies checkpoints and deletes old ones.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil

from holdfast.arena.layout import Entry, Layout
from holdfast.arena.memory import Arena
from holdfast.arena.pages import HUGE_PAGE, map_file, populate
from holdfast.checkpoint.part_file import write_part
from holdfast.checkpoint.retention import Retention, log_retention_event
from holdfast.checkpoint.sealing.seal import UNSEALED, Seal
from holdfast.checkpoint.storage import Storage
from holdfast.checkpoint.store import CheckpointStore
from holdfast.errors import JobError, ProtocolError
from holdfast.job.settings import CheckpointSettings
from holdfast.rundir.json_lines import EventLog
from holdfast.rundir.run_directory import EVENTS
from holdfast.wire.channel import Channel
from holdfast.wire.messages import (
    DeleteOldMessage,
    PartWrittenMessage,
    StagingMessage,
    WritePartMessage,
)
from holdfast.wire.worker_spec import WriterSpec

LOWEST_PRIORITY: Final = 19
_POLL_S: Final = 60.0


def run(spec: WriterSpec, arena: Arena, channel: Channel) -> int:
    """Do what the agent asks for until it closes its end; returns the exit status."""
    os.nice(LOWEST_PRIORITY)
    with suppress(psutil.Error, OSError):  # not every kernel has priorities for disks
        psutil.Process().ionice(psutil.IOPRIO_CLASS_IDLE)
    run_dir = Path(spec.run_dir)
    settings = spec.settings
    store = CheckpointStore.of_run(run_dir, _seal(settings))
    with (
        EventLog(run_dir / EVENTS) as log,
        Retention(
            store, spec.retention, lambda event: log_retention_event(log, event, spec.where)
        ) as retention,
    ):
        while not channel.at_end:
            for message in channel.poll(_POLL_S):
                match message:
                    case StagingMessage(offset=offset, size_bytes=size_bytes):
                        # Before the first checkpoint, so that its copy does not wait for memory.
                        memory = _mapped(arena, offset, size_bytes)
                        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
                        populate(address, len(memory))
                    case WritePartMessage():
                        channel.send(_written(spec, store.storage, arena, message))
                    case DeleteOldMessage():
                        retention.request()
                    case _:
                        raise ProtocolError(f"the writer cannot handle {message.kind!r}")
    return os.EX_OK


def _seal(settings: CheckpointSettings) -> Seal:
    """Seal with which signatures are checked; nothing if the key is gone meanwhile."""
    with suppress(JobError):
        return Seal.of(settings)
    return UNSEALED


def _written(
    spec: WriterSpec, storage: Storage, arena: Arena, request: WritePartMessage
) -> PartWrittenMessage:
    """Write a staged state; returns what to tell the agent."""
    layout = Layout(tuple(Entry(*entry) for entry in request.entries), request.size_bytes)
    state = _mapped(arena, request.offset, request.size_bytes)
    try:
        seal = Seal.of(spec.settings)
        part = write_part(storage, request.draft, state, layout, 0, 1, seal)
    except (OSError, JobError) as error:  # a key may be gone meanwhile
        return PartWrittenMessage(error=str(error))
    file = part.file.model_dump(mode="json")
    return PartWrittenMessage(file=file, staged_digests=part.staged_digests)


def _mapped(arena: Arena, offset: int, size_bytes: int) -> memoryview:
    """A range of the arena's file; freed with the last reference to it."""
    start = offset // HUGE_PAGE * HUGE_PAGE  # so that huge pages fit
    return map_file(arena.fd, offset + size_bytes - start, start)[offset - start :]
