"""Cluster: devices of unlike speed, one for each worker."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, Self

from holdfast.core.balance.planner import Cost, fastest
from holdfast.errors import JobError
from holdfast.hardware.profile import Device, HostProfile
from holdfast.hardware.profile_file import ANY_HOST, Profiles
from holdfast_bench.unlike.slowed import Mode

TFLOPS: Final = {"rtx3060": 12.7, "rtx3050": 9.1, "gtx1650": 3.0}
"""Peak single-precision TFLOPS of the devices that can be named, by their vendor's data sheets."""
MOST: Final = 64
"""How many times as fast as another device one may be."""
HEADROOM: Final = 1.3
"""With pauses, how many times slower even the fastest device is than a core. What it does not use
is there for waits for a core, which its pauses absorb.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Devices, one for each worker.

    Attributes:
        name: As the user wrote it.
        speeds: Of each device, relative to each other.
    """

    name: str
    speeds: tuple[float, ...]

    @classmethod
    def of_speeds(cls, text: str) -> Self:
        """Speeds such as `4:2:1:1` or `1:1/4`.

        Raises:
            JobError: They are not at least two numbers above 0.
        """
        try:
            speeds = tuple(float(Fraction(each)) for each in text.split(":"))
        except (ValueError, ArithmeticError):
            speeds = ()
        if len(speeds) < 2 or min(speeds) <= 0 or max(speeds) > MOST * min(speeds):
            raise JobError(
                f"speeds {text!r} must be two or more numbers above 0, such as 4:2:1:1 or 1:1/4, "
                f"and none more than {MOST} times another"
            )
        return cls(name=text, speeds=speeds)

    @classmethod
    def of_devices(cls, text: str) -> Self:
        """Devices such as `rtx3060,gtx1650`.

        Raises:
            JobError: One is not known, or there are fewer than two.
        """
        names = text.split(",")
        if unknown := sorted({*names} - TFLOPS.keys()):
            raise JobError(f"no device {', '.join(unknown)}; there are {', '.join(TFLOPS)}")
        if len(names) < 2:
            raise JobError(f"a cluster needs two devices or more, such as {text},{text}")
        return cls(name=text, speeds=tuple(TFLOPS[name] for name in names))

    @property
    def workers(self) -> int:
        """Number of workers."""
        return len(self.speeds)

    @property
    def profile(self) -> Profiles:
        """Speeds as a user would write them down."""
        devices = tuple(Device(name=self.name, score=speed) for speed in self.speeds)
        return Profiles(hosts={ANY_HOST: HostProfile(devices=devices)})

    def factors(self, mode: Mode, cores: int) -> tuple[float, ...]:
        """Emulated slow-down of each device, as a multiple of a core's time.

        With pauses all are slowed down by as much more as is needed for `cores` to have `HEADROOM`.
        """
        fastest_speed = max(self.speeds)
        scale = 1.0
        if mode == "pause":
            scale = HEADROOM * max(1.0, math.fsum(self.speeds) / fastest_speed / cores)
        return tuple(scale * fastest_speed / speed for speed in self.speeds)

    def counts(self, shards: int) -> tuple[int, ...]:
        """The shards of each worker by which a step ends soonest, if its speed is all that counts.

        Raises:
            JobError: There are fewer shards than workers.
        """
        if shards < self.workers:
            raise JobError(f"{shards} shards are too few for {self.workers} workers")
        return fastest([Cost(0.0, 1 / speed, shards) for speed in self.speeds], shards)


def default_shards(cluster: Cluster) -> int:
    """Enough shards for plans that are within a few percent of the speeds: 8 a worker, or more for
    two workers, whose speeds a multiple of their sum divides exactly.
    """
    total = math.fsum(cluster.speeds) / min(cluster.speeds)
    if cluster.workers == 2 and total.is_integer():
        return _multiple_near(24, int(total), cluster.workers)
    return 8 * cluster.workers


def _multiple_near(near: int, *divisors: int) -> int:
    step = math.lcm(*divisors)
    return step * max(1, near // step)
