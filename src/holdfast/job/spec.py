"""The job: what a run is asked to do, checked.

A job either trains (`TrainJob`) or runs an unchanged script (`ScriptJob`). What coordinator, agents
and observers ask of a job are keys or properties that both kinds have; only the code that starts
the work itself tells the kinds apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from holdfast.job.script_job import ScriptJob
from holdfast.job.train_job import TrainJob

Job: TypeAlias = TrainJob | ScriptJob


def is_script(values: Mapping[str, Any]) -> bool:
    """True if these keys describe a job with a script."""
    return values.get("script") is not None
