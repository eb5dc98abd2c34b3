"""The writer: a process of each host that writes staged checkpoints to disk while workers train.

It is forked like a worker, and has the lowest priority for the processor and the disk: a checkpoint
is never urgent. It writes straight from the arena, past the page cache; see `linux.files`.
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
from holdfast.checkpoint.seal import Seal
from holdfast.checkpoint.store import CheckpointStore
from holdfast.checkpoint.writer import write_part
from holdfast.errors import JobError, ProtocolError
from holdfast.wire.channel import Channel
from holdfast.wire.messages import PartWrittenMessage, StagingMessage, WritePartMessage
from holdfast.wire.worker_spec import WriterSpec

LOWEST_PRIORITY: Final = 19
_POLL_S: Final = 60.0


def run(spec: WriterSpec, arena: Arena, channel: Channel) -> int:
    """Write what the agent asks for until it closes its end; returns the exit status."""
    os.nice(LOWEST_PRIORITY)
    with suppress(psutil.Error, OSError):  # not every kernel has priorities for disks
        psutil.Process().ionice(psutil.IOPRIO_CLASS_IDLE)
    storage = CheckpointStore.of_run(Path(spec.run_dir)).storage
    while not channel.at_end:
        for message in channel.poll(_POLL_S):
            match message:
                case StagingMessage():
                    memory = _mapped(arena, message.offset, message.size_bytes)
                    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
                    populate(address, len(memory))
                case WritePartMessage():
                    layout = Layout(
                        tuple(Entry(*entry) for entry in message.entries), message.size_bytes
                    )
                    state = _mapped(arena, message.offset, message.size_bytes)
                    try:
                        seal = Seal.of(spec.settings)
                        part = write_part(storage, message.draft, state, layout, 0, 1, seal)
                        written = PartWrittenMessage(
                            file=part.file.model_dump(mode="json"),
                            staged_digests=part.staged_digests,
                        )
                    except (OSError, JobError) as error:  # a key may be gone meanwhile
                        written = PartWrittenMessage(error=str(error))
                    channel.send(written)
                case _:
                    raise ProtocolError(f"the writer cannot handle {message.kind!r}")
    return os.EX_OK


def _mapped(arena: Arena, offset: int, size_bytes: int) -> memoryview:
    """A range of the arena's file; freed with the last reference to it."""
    start = offset // HUGE_PAGE * HUGE_PAGE  # so that huge pages fit
    return map_file(arena.fd, offset + size_bytes - start, start)[offset - start :]
