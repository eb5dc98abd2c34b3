"""Conditions: the machine, the versions and the load under which a benchmark ran."""

from __future__ import annotations

import os
import platform
import time
from datetime import UTC, datetime
from importlib import metadata
from typing import Final

from pydantic import BaseModel, ConfigDict, Field

from holdfast.hardware.nvml import Driver
from holdfast.linux.host_memory import total_bytes
from holdfast.linux.supply import model_name, usable_cores

PACKAGES: Final = ("holdfast", "torch", "numpy", "ray", "torchft", "transformers", "peft")
"""Whose versions may change a result; those that are installed are recorded."""


class Conditions(BaseModel):
    """Machine, software and load of a benchmark.

    Attributes:
        started: When it began, UTC.
        seconds: How long it took.
        cpu: The name of the processor.
        cores: Cores that it could use.
        memory_bytes: Memory of the host, or of its control group.
        gpus: Names of the GPUs.
        system: Operating system and kernel.
        versions: Of Python, of packages and of NVIDIA's driver, by name.
        load_before, load_after: The load average of the minute before the start and the end.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    started: datetime
    seconds: float = Field(ge=0)
    cpu: str
    cores: int = Field(ge=1)
    memory_bytes: int = Field(ge=0)
    gpus: tuple[str, ...] = ()
    system: str
    versions: dict[str, str]
    load_before: float = Field(ge=0)
    load_after: float = Field(ge=0)


class Stopwatch:
    """Takes the time and the load of a benchmark, from when this object is made."""

    def __init__(self) -> None:
        self._started = datetime.now(UTC)
        self._began = time.monotonic()
        self._load = os.getloadavg()[0]

    def conditions(self) -> Conditions:
        """The conditions of what ran since."""
        return Conditions(
            started=self._started.replace(microsecond=0),
            seconds=round(time.monotonic() - self._began, 1),
            cpu=model_name(),
            cores=usable_cores(),
            memory_bytes=total_bytes(),
            gpus=tuple(gpu.name for gpu in Driver().gpus()),
            system=f"{platform.system()} {platform.release()}",
            versions=_versions(),
            load_before=round(self._load, 2),
            load_after=round(os.getloadavg()[0], 2),
        )


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    if driver := Driver().version:
        found["driver"] = driver
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
