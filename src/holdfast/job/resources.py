"""The resources that a worker needs."""

from __future__ import annotations

import re
from typing import Annotated, Final, Self

from pydantic import AfterValidator, Field

from holdfast.core.placement.shares import Needs
from holdfast.job.part import Spec

_UNITS: Final = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12} | {
    f"{prefix}i": 1 << 10 * power for power, prefix in enumerate("KMGT", start=1)
}
_AMOUNT: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]i?)?B?", re.ASCII)


def bytes_of(amount: str) -> int:
    """The bytes in an amount such as `4GiB`, `512M` or `1000000`.

    Raises:
        ValueError: It is no amount.
    """
    found = _AMOUNT.fullmatch(amount.strip())
    if found is None:
        raise ValueError("should be an amount of memory, such as 4GiB or 512M")
    return int(float(found[1]) * _UNITS[found[2] or ""])


def _is_amount(amount: str) -> str:
    bytes_of(amount)
    return amount


class Resources(Spec):
    """Resources that one worker needs for itself."""

    cpus: Annotated[int, Field(ge=0, le=1024)] = 0
    """CPUs; 0: as many as `threads_per_worker`, which workers share."""
    gpus: Annotated[int, Field(ge=0, le=64)] = 0
    """GPUs; a worker of a training job computes on one."""
    memory: Annotated[str, AfterValidator(_is_amount)] = "0"
    """Main memory, such as `4GiB`; 0: not limited."""

    @property
    def memory_bytes(self) -> int:
        """The memory, bytes."""
        return bytes_of(self.memory)

    @property
    def is_given(self) -> bool:
        """True if a worker needs anything in particular."""
        return bool(self.cpus or self.gpus or self.memory_bytes)

    def needs(self, workers: int, threads: int) -> Needs:
        """Needs of so many workers on one host, each with so many threads."""
        return Needs(
            workers=workers,
            cpus=max(self.cpus, threads),
            gpus=self.gpus,
            memory_bytes=self.memory_bytes,
        )

    def times(self, workers: int) -> Self:
        """Resources of so many workers."""
        return self.model_copy(
            update={
                "cpus": workers * self.cpus,
                "gpus": workers * self.gpus,
                "memory": str(workers * self.memory_bytes),
            }
        )
