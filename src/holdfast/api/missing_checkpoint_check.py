"""Rolled back: a run directory that lacks the newest checkpoint which its own record names.

A checkpoint vanishes if someone deletes it, or if its directory is replaced by an older copy. To
resume from an older one then would silently repeat work, or undo what was meant to last. Damage is
another matter: a checkpoint in quarantine is accounted for, and the run resumes by itself.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from holdfast.checkpoint import names
from holdfast.checkpoint.store import CheckpointStore
from holdfast.errors import JobError
from holdfast.rundir import json_lines
from holdfast.rundir.run_directory import EVENTS


def check_newest(run_dir: Path) -> None:
    """Check, before a run is resumed, that its directory still has the newest checkpoint.

    Raises:
        JobError: It has an older one, or none.
    """
    store = CheckpointStore.of_run(run_dir)
    steps = committed_steps(json_lines.read(run_dir / EVENTS), run_dir / "checkpoints")
    present = store.storage.names()
    newest = max((names.step_of(name) for name in store.committed()), default=None)
    missing = [
        step
        for step in steps
        if (newest is None or step > newest) and not _is_accounted_for(step, present)
    ]
    if not missing:
        return
    step = max(missing)
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(steps[step]))
    if newest is None:
        now, otherwise = "it has none now", "begin from nothing"
    else:
        now, otherwise = f"its newest one is of step {newest} now", "resume from that"
    raise JobError(
        f"{run_dir} has lost the checkpoint of step {step}, which was committed at {at}; {now}. "
        "Its directory was replaced by an older copy, or the checkpoint was deleted. Bring it back "
        f"to {store.location(names.checkpoint_name(step))}, or {otherwise}: --accept-older "
        "(accept_older=True in Python)"
    )


def committed_steps(events: Iterable[Mapping[str, Any]], folder: Path) -> dict[int, float]:
    """The checkpoints that a run's record says are in a folder, and when each was committed.

    Args:
        events: Those of the run, oldest first.
        folder: Where the run's checkpoints are on this host.

    Returns:
        Unix times by step. What the record says was quarantined is left out, and so is what was
        newer than the checkpoint that the run was resumed or restored from. Retention never deletes
        the newest.
    """
    steps = dict[int, float]()
    for event in events:
        match event:
            case {
                "event": "checkpoint-committed" | "checkpoint-collected",
                "step": int(step),
                "time_unix_s": float() | int() as at,
            }:
                if _is_here(event, folder):
                    steps[step] = at
            case {"event": "checkpoint-corrupt", "step": int(step)}:
                if _is_here(event, folder):
                    steps.pop(step, None)
            case {"event": "checkpoint-rejected", "directory": str(directory)}:
                name = Path(directory).name
                if _is_here(event, folder) and names.is_checkpoint(name):
                    steps.pop(names.step_of(name), None)
            case {"event": "generation-started" | "run-restored", "step": int(step)}:
                steps = {each: at for each, at in steps.items() if each <= step}
    return steps


def _is_here(event: Mapping[str, Any], folder: Path) -> bool:
    """Whether an event is about this host. In a run on several hosts it may be about another one;
    the directory of a run on one host may have been moved.
    """
    directory = event.get("directory")
    if "host" not in event or not isinstance(directory, str):
        return True
    return Path(directory).parent.resolve() == folder.resolve()


def _is_accounted_for(step: int, present: Iterable[str]) -> bool:
    """Whether a checkpoint is in quarantine, or its deletion or replacement was interrupted."""
    name = names.checkpoint_name(step)
    interrupted = {names.deleted_name(name), names.replaced_name(name)}
    return any(each in interrupted or each.startswith(f"{name}.rejected-") for each in present)
