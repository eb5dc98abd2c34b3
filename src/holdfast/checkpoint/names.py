"""Names of checkpoints and of what is not one: drafts, and checkpoints taken out of use. Pure.

step-00000200               a checkpoint
step-00000200.<attempt>.tmp a draft, which an attempt is writing
step-00000200.0.tmp         a checkpoint that is being deleted
step-00000200.1.tmp         a checkpoint that another one of the same step replaces
step-00000200.2.tmp         a pin that is being written
step-00000200.pinned        a pin: retention never deletes this checkpoint
step-00000200.rejected-1    quarantined: it failed its verification, or was skipped
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

_COMMITTED: Final = re.compile(r"step-(\d{8,18})", re.ASCII)
_DRAFT: Final = re.compile(r"step-\d{8,18}\.[0-9a-f]+\.tmp", re.ASCII)
_QUARANTINED: Final = re.compile(r"step-\d{8,18}\.rejected-\d{1,3}", re.ASCII)
_PIN: Final = ".pinned"
MAX_QUARANTINED: Final = 999
"""Most quarantined checkpoints of one step."""


def checkpoint_name(step: int) -> str:
    """The name of the checkpoint of `step`."""
    return f"step-{step:08d}"


def step_of(name: str) -> int:
    """The step of a checkpoint, or of what is not one any more, or not yet."""
    return int(name.removeprefix("step-").partition(".")[0])


def is_checkpoint(name: str) -> bool:
    """True if a name claims to be that of a checkpoint."""
    return _COMMITTED.fullmatch(name) is not None


def is_partial(name: str) -> bool:
    """True if a name is that of a draft, or of a checkpoint that is being deleted or replaced."""
    return _DRAFT.fullmatch(name) is not None


def attempt_in(generation: int, attempt: str) -> str:
    """The attempt of one generation within an attempt to run the job, hexadecimal."""
    return f"{attempt}{generation:08x}"


def draft_name(step: int, attempt: str) -> str:
    """The name under which parts are written; `attempt` is hexadecimal."""
    return f"{checkpoint_name(step)}.{attempt}.tmp"


def checkpoint_of(draft: str) -> str:
    """The name that a draft will have once it is published."""
    return draft.partition(".")[0]


def is_draft_of(name: str, attempt: str) -> bool:
    """True if a name is that of a draft of this attempt."""
    return is_partial(name) and name.endswith(f".{attempt}.tmp")


def deleted_name(name: str) -> str:
    """The name under which a checkpoint is deleted."""
    return f"{name}.0.tmp"


def replaced_name(name: str) -> str:
    """The name that a checkpoint has while another one takes its place."""
    return f"{name}.1.tmp"


def renamed_from(name: str) -> str | None:
    """The checkpoint that is deleted or replaced under `name`; None if there is none."""
    original, _, suffix = name.partition(".")
    return original if suffix in ("0.tmp", "1.tmp") and is_checkpoint(original) else None


def pin_name(name: str) -> str:
    """The name of the pin of a checkpoint."""
    return name + _PIN


def pin_draft_name(name: str) -> str:
    """The name under which the pin of a checkpoint is written."""
    return f"{name}.2.tmp"


def pinned(name: str) -> str | None:
    """The checkpoint whose pin has this name; None if it is not that of a pin."""
    original = name.removesuffix(_PIN)
    return original if original != name and is_checkpoint(original) else None


def is_quarantined(name: str) -> bool:
    """True if a name is that of a quarantined checkpoint."""
    return _QUARANTINED.fullmatch(name) is not None


def quarantine_names(name: str) -> Iterator[str]:
    """Names for a quarantined checkpoint, the first free one of which it takes."""
    return (f"{name}.rejected-{number}" for number in range(1, MAX_QUARANTINED + 1))
