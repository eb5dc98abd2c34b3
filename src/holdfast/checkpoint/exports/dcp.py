"""DCP: writes the weights of a checkpoint as a directory of torch.distributed.checkpoint."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path
from typing import Final

from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save

from holdfast.checkpoint.exports.export import check_absent
from holdfast.checkpoint.exports.weights import StateDict, read_checkpoint
from holdfast.errors import JobError

_METADATA: Final = ".metadata"
"""In every such directory."""


def export_dcp(
    checkpoint: Path,
    target: Path,
    of: str | None = None,
    key: Path | None = None,
    *,
    replace: bool = False,
) -> None:
    """Write what `torch.distributed.checkpoint.load` reads, as a whole or not at all.

    Args:
        checkpoint: The directory of a checkpoint.
        target: The directory to write.
        of, key: Defined in `read_checkpoint`.
        replace: True to replace such a directory that exists.

    Raises:
        JobError: `target` exists or cannot be written, or no key opens the checkpoint.
        CheckpointError: The checkpoint is damaged.
    """
    check_absent(target, replace=replace)
    if target.exists() and not (target / _METADATA).exists():
        raise JobError(f"{target} is not of torch.distributed.checkpoint; name another directory")
    weights = read_checkpoint(checkpoint, of, key)
    draft = target.with_name(f".{target.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)  # left by a crash
    try:
        _save(weights, draft)
        _take_place(draft, target)
    except OSError as error:
        raise JobError(f"{target}: {error.strerror or error}") from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _save(weights: StateDict, folder: Path) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that there is only one process
            save(weights, storage_writer=FileSystemWriter(folder), no_dist=True)
    except CheckpointException as error:  # no Exception
        cause, _ = next(iter(error.failures.values()))
        raise cause if isinstance(cause, OSError) else OSError(str(cause)) from None


def _take_place(draft: Path, target: Path) -> None:
    """Give a directory its name, in place of another one."""
    # A directory cannot replace another one at once, so the old one steps aside for a moment.
    old = target.with_name(f".{target.name}.old")
    if target.exists():
        shutil.rmtree(old, ignore_errors=True)
        target.rename(old)
    draft.rename(target)
    shutil.rmtree(old, ignore_errors=True)
