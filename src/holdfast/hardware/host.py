"""Host: the profile of this host. Its devices are measured by a process that has torch."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from holdfast.errors import HoldfastError
from holdfast.hardware.disk import measure_disk
from holdfast.hardware.profile import Device, HostProfile, Memory, Precision
from holdfast.hardware.profile_file import PROFILE
from holdfast.linux.host_memory import available, total_bytes

TIMEOUT_S: Final = 120.0
"""How long importing torch and measuring may take."""


def profile_here(folder: Path) -> HostProfile:
    """Measure all of this host.

    Args:
        folder: Folder whose disk is measured.

    Raises:
        JobError: The disk cannot be written to.
        HoldfastError: The devices cannot be measured.
    """
    disk = measure_disk(folder)
    memory = Memory(total_bytes=total_bytes(), available_bytes=available().size_bytes)
    return replace(_measured(()), memory=memory, disk=disk)


def devices_here(device: str, precision: Precision) -> tuple[Device, ...]:
    """Measure what workers of this host compute on, within a second or two.

    Args:
        device: Key of the job: `auto`, `cpu` or `cuda`.
        precision: Precision of the job.

    Raises:
        HoldfastError: They cannot be measured.
    """
    return _measured(("--scores-for", device, "--precision", precision)).devices


def _measured(words: Sequence[str]) -> HostProfile:
    remedy = "see whether torch and the GPU driver work here: holdfast doctor"
    try:
        done = subprocess.run(
            [
                *(sys.executable, "-m", "holdfast.hardware.measure"),
                *("--parent", str(os.getpid()), *words),
            ],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
    except subprocess.TimeoutExpired:
        raise HoldfastError(f"measuring took longer than {TIMEOUT_S:.0f} s; {remedy}") from None
    try:
        return PROFILE.validate_json(done.stdout)
    except ValidationError:
        last = (done.stderr.decode(errors="replace").strip().splitlines() or ["no output"])[-1]
        raise HoldfastError(
            f"the process that measures ended with {done.returncode}: {last}; {remedy}"
        ) from None
