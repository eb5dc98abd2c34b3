"""Same data: a run that is resumed reads what it began with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.data.loading.order import SHUFFLED
from holdfast.errors import JobError
from holdfast.worker.progress import Progress


def note_facts(progress: Progress, facts: Mapping[str, Any], *, extend: bool) -> bool:
    """Note in `progress` what must stay the same in a resumed run; returns whether it is longer.

    Args:
        progress: Progress of the run.
        facts: Data that the run reads, by name.
        extend: True if there may be more epochs or steps than before.

    Raises:
        JobError: The run began with something else.
    """
    # Older checkpoints do not name the order: their runs have shuffled, whatever a loader said.
    known = ({"sampler": SHUFFLED} if "num_samples" in progress.order else {}) | progress.order
    changed = [key for key in facts if known.get(key, facts[key]) != facts[key]]
    longer = [key for key in changed if key in ("epochs", "steps") and facts[key] > known[key]]
    if changed and not (extend and changed == longer):
        key = next((each for each in changed if each not in longer), changed[0])
        advice = "extend the run with extend=true"
        raise JobError(
            f"the run began with {key}={known[key]} in session.shards and now has {facts[key]}: "
            "samples would be used twice or never. "
            + (
                f"To train for longer, {advice}"
                if changed == longer
                else "Resume with the same data"
            )
            + ", or start a new run"
        )
    progress.order = {**known, **facts}
    return bool(changed)
