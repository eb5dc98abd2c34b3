"""Fork: a checkpoint of one run becomes the first one of another, whose job differs in some keys.

The tensors are the same files. The manifest is a new one, with the keys of the new job, and a mark
in the user state: workers that restore it take the options of the optimizer from their factories
and move schedules forward, as they do where a run is extended. The next checkpoint has no mark.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from holdfast.checkpoint import names
from holdfast.checkpoint.manifest import FORKED, Best, Manifest, Parent
from holdfast.checkpoint.store import CheckpointStore
from holdfast.errors import CheckpointError, JobError
from holdfast.job.train_job import TrainJob

_PARTS: Final = ("optimizer", "schedule", "params")
_KEYS: Final = ("clip_norm", "model.dropout")
_ATTEMPT: Final = "f0"


def may_differ(key: str) -> bool:
    """True if a fork may have another value of a dotted key: it changes no shape, and no order."""
    part, _, rest = key.partition(".")
    return key in _KEYS or (part in _PARTS and rest != "name")


def fork(source: Path, step: int, target: Path, job: TrainJob) -> None:
    """Make the checkpoint of a step of one run the first one of another.

    Args:
        source: Directory of the run that has the checkpoint.
        step: Its steps.
        target: Directory of the new run; it may exist, without a checkpoint.
        job: The new run's job.

    Raises:
        JobError: The jobs differ in a key that must be the same, or checkpoints are sealed.
        CheckpointError: The checkpoint is damaged, or a file cannot be written.
    """
    if job.checkpoint.sign or job.checkpoint.encrypt:
        raise JobError("signed or encrypted checkpoints cannot be forked; remove the keys")
    store = CheckpointStore.of_run(source)
    name = names.checkpoint_name(step)
    manifest = store.manifest(name)
    now = job.weights_config()
    for key in _changed(manifest.weights_config, now):
        if not may_differ(key):
            raise JobError(
                f"a fork of {source} cannot have another {key}: only optimizer, schedule, params, "
                "clip_norm and model.dropout may differ"
            )
    forked = manifest.model_copy(
        update={
            "weights_config": now,
            "best": Best(),
            "parent": Parent(name=name, root=manifest.root),
            "user_state": {**manifest.user_state, FORKED: True},
        }
    )
    try:
        _publish(forked, Path(store.location(name)), target)
    except OSError as error:
        raise CheckpointError(f"{target}: {error.strerror}; the fork was not made") from None


def _publish(manifest: Manifest, source: Path, target: Path) -> None:
    """Make a checkpoint of a manifest and the parts of another one, in a run's directory."""
    draft = target / "checkpoints" / names.draft_name(manifest.step, _ATTEMPT)
    shutil.rmtree(draft, ignore_errors=True)  # left by a crash
    draft.mkdir(parents=True)
    for part in manifest.parts:
        _link(source / part.file, draft / part.file)
    store = CheckpointStore.of_run(target)
    store.prepare(manifest, _ATTEMPT)
    store.publish(manifest.step, _ATTEMPT)


def _link(source: Path, target: Path) -> None:
    """Have a file under another name, as a copy where there are no links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _changed(before: Any, now: Any, prefix: str = "") -> list[str]:
    """The dotted keys that differ."""
    if not isinstance(before, Mapping) or not isinstance(now, Mapping):
        return [prefix] if before != now else []
    keys = [*now, *(key for key in before if key not in now)]
    dotted = [(f"{prefix}.{key}" if prefix else key, key) for key in keys]
    return [each for name, key in dotted for each in _changed(before.get(key), now.get(key), name)]
