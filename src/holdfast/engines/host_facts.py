"""`python -m holdfast.engines.host_facts`: what this host has for agents, as a line of JSON.

The engine runs it on hosts that it has no other knowledge of.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict

from holdfast.engines.own_wheel import version_of_code
from holdfast.linux.cores import usable_cores
from holdfast.linux.host_memory import available

_GPUS: Final = Path("/proc/driver/nvidia/gpus")


class HostFacts(BaseModel):
    """What a host has.

    Attributes:
        version: Of holdfast, see `own_wheel`.
        cpus: The cores that agents may use.
        gpus: The GPUs that the kernel knows.
        memory_bytes: What is available now.
    """

    model_config = ConfigDict(frozen=True)

    version: str
    cpus: int
    gpus: int
    memory_bytes: int

    @classmethod
    def here(cls) -> HostFacts:
        """Those of this host."""
        return cls(
            version=version_of_code(),
            cpus=usable_cores(),
            gpus=len(list(_GPUS.glob("*"))),
            memory_bytes=available().size_bytes,
        )


if __name__ == "__main__":
    print(HostFacts.here().model_dump_json())
