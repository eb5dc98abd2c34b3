"""`python -m holdfast.engines.host_facts`: what this host has for agents, as a line of JSON.

The engine runs it on hosts that it has no other knowledge of.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict
from rich.filesize import decimal as in_words

from holdfast.engines.own_wheel import version_of_code
from holdfast.job.resources import Resources
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

    def lacks(self, version: str, needs: Resources) -> str:
        """What the host lacks for its agents, in words; nothing if they fit.

        Args:
            version: That of the holdfast that starts them.
            needs: What they need together.
        """
        if self.version != version:
            return f"has holdfast {self.version}, this host {version}"
        if self.cpus < needs.cpus:
            return f"has {self.cpus} CPU cores, its agents need {needs.cpus}"
        if self.gpus < needs.gpus:
            return f"has {self.gpus} GPUs, its agents need {needs.gpus}"
        if self.memory_bytes < needs.memory_bytes:
            return (
                f"has {in_words(self.memory_bytes)} of memory available, its agents need "
                f"{in_words(needs.memory_bytes)}"
            )
        return ""


if __name__ == "__main__":
    print(HostFacts.here().model_dump_json())
