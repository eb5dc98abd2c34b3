"""Facts: what trackers are told about a run once: its parameters, and what they may depend on."""

from __future__ import annotations

import json
import platform
import socket
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from holdfast.rundir import code_version
from holdfast.rundir.run_directory import run_id_of
from holdfast.sinks.trackers.tracker import TrackedJob, TrackedRun

_PACKAGES: Final = ("holdfast", "torch", "numpy")


def of_run(run_dir: Path, job: TrackedJob) -> TrackedRun:
    """Facts for trackers on the run in a directory that exists."""
    return TrackedRun(path=run_dir, run_id=run_id_of(run_dir), job=job, tags=_tags(run_dir))


def flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Dotted keys and their values as text; those without a value are left out."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")
        elif value is not None:
            yield prefix + key, value if isinstance(value, str) else json.dumps(value)


def _tags(run_dir: Path) -> dict[str, str]:
    tags = {
        "host": socket.gethostname(),
        "platform": platform.platform(),
        "run_dir": str(run_dir.resolve()),
        "version.python": platform.python_version(),
    }
    for name in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            tags[f"version.{name}"] = metadata.version(name)
    if commit := code_version.kept(run_dir).commit:
        tags["git.commit"] = commit
    return tags
