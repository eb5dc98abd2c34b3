"""Savers: how a state is saved and loaded by what people use without holdfast.

    torch               torch.save
    torch-fsync         the same, and fsync
    safetensors         safetensors' save_file
    safetensors-fsync   the same, and fsync
    dcp                 torch.distributed.checkpoint (DCP), which syncs by default
    dcp-thread          its async_save in a thread, as it comes
    dcp-thread-shm      the same with one stager of shared memory that is used again
    dcp-thread-staged   the same, with a stager that copies in a thread until the next update
    dcp-process         its async_save in a process, with a stager as of dcp-thread-shm

The first four write on rank 0 and replace their file as a whole; with DCP, each rank writes its
share of the tensors. All alternate between two checkpoints, so that one is whole at any time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from safetensors import safe_open
from safetensors.torch import save_file
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import (
    AsyncCheckpointerType,
    AsyncSaveResponse,
    async_save,
    save,
)

from holdfast.linux.files import sync_directory

State = Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class PendingSave:
    """A save that has begun.

    Attributes:
        staged: Done once the state may change.
        finished: Done once the save is finished.
    """

    staged: Future[Any]
    finished: Future[Any]


Save = Callable[[State, Path], PendingSave]
"""Begins to save a state at a path; all ranks call it, after the save before is finished."""


def saver_of(system: str) -> Save:
    """The saver of a system, in a process that belongs to a process group."""
    library, _, way = system.partition("-")
    if library != "dcp":
        write = torch.save if library == "torch" else save_file
        return partial(_save_on_first, write, is_synced=way == "fsync")
    if not way:
        return _save_with_dcp
    options = dict[str, Any]()
    if way == "process":
        options["async_checkpointer_type"] = AsyncCheckpointerType.PROCESS
    else:  # which must not share its collectives with the training
        options["process_group"] = dist.new_group(backend="gloo")
    if way != "thread":
        options["async_stager"] = DefaultStager(
            StagingOptions(
                use_pinned_memory=False,  # this and the last one are for GPUs only
                use_shared_memory=True,
                use_async_staging=way == "thread-staged",
                use_non_blocking_copy=False,
            )
        )
    return partial(_begin_with_dcp, options)


def load_into(system: str, path: Path, state: State) -> None:
    """Load what a saver has saved at a path into tensors that exist; all ranks call it."""
    match system.partition("-")[0]:
        case "dcp":
            load(dict(state), checkpoint_id=path)
        case "torch":
            loaded = torch.load(path, mmap=True, weights_only=True)
            for name, tensor in state.items():
                tensor.copy_(loaded[name])
        case _:
            with safe_open(path, "pt") as file:
                for name, tensor in state.items():
                    tensor.copy_(file.get_tensor(name))


def _save_on_first(
    write: Callable[[dict[str, torch.Tensor], Path], None],
    state: State,
    path: Path,
    *,
    is_synced: bool,
) -> PendingSave:
    if dist.get_rank() == 0:
        draft = path.with_suffix(".tmp")
        write(dict(state), draft)
        if is_synced:
            fd = os.open(draft, os.O_RDONLY)
            os.fsync(fd)
            os.close(fd)
        draft.replace(path)
        if is_synced:
            sync_directory(path.parent)
    return PendingSave(_DONE, _DONE)


def _save_with_dcp(state: State, path: Path) -> PendingSave:
    save(dict(state), checkpoint_id=path)
    return PendingSave(_DONE, _DONE)


def _begin_with_dcp(options: Mapping[str, Any], state: State, path: Path) -> PendingSave:
    begun = async_save(dict(state), checkpoint_id=path, **options)
    if isinstance(begun, AsyncSaveResponse):
        return PendingSave(begun.staging_completion, begun.upload_completion)
    return PendingSave(_DONE, begun)


_DONE: Final = Future[Any]()
_DONE.set_result(None)
