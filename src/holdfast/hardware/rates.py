"""Rates: matrix products and copies of a device, by torch.

Other processes can make a round slower, never faster, so the best of many short rounds count. On a
busy host even these are slow, and all by the same factor at times. So a round counts only if the
threads that computed in it had a processor whenever they could use one, and a rate is reliable only
if some of the best of these rounds agree.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch

from holdfast.hardware.profile import Precision

DTYPES: Final[dict[Precision, torch.dtype]] = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}
SIDE: Final = {"cpu": 1024, "cuda": 4096}
"""Rows and columns of the matrices: enough to keep every core busy."""
SMALL_SIDE: Final = 256
"""The same where a CPU emulates a type, so that a larger product would take long."""
SLOW_S: Final = 0.5
COPY_BYTES: Final = 256 << 20
"""More than caches hold."""
ROUND_S: Final = 0.01
"""A round has as many calls as take this long: a clock and a launch must not count."""
MIN_ROUNDS: Final = 3
PATIENCE: Final = 5
"""Factor of the time for which rounds that do not agree are repeated."""
AGREEING: Final = 3
"""Number of the best rounds that must agree."""
TOLERANCE: Final = 0.1
"""By which fraction the slowest of these may take longer than the best."""
MAX_WAIT: Final = 0.05
"""Wait of threads for a processor in a round that counts, at most, as a fraction of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One round.

    Attributes:
        seconds: Duration.
        waited_s: Time that threads of this process waited for a processor meanwhile; their sum.
    """

    seconds: float
    waited_s: float

    @property
    def is_quiet(self) -> bool:
        """True if no other process has slowed it down much."""
        return self.waited_s <= MAX_WAIT * self.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Seconds that something takes, by some rounds.

    Attributes:
        seconds: The best round.
        is_reliable: True if the rounds agree.
    """

    seconds: float
    is_reliable: bool


def timing(rounds: Sequence[Round]) -> Timing:
    """The result of some rounds, at least one."""
    quiet = sorted(each.seconds for each in rounds if each.is_quiet)
    best = quiet[:AGREEING]
    if len(best) == AGREEING and best[-1] <= (1 + TOLERANCE) * best[0]:
        return Timing(seconds=best[0], is_reliable=True)
    return Timing(seconds=min(each.seconds for each in rounds), is_reliable=False)


@dataclass(frozen=True, slots=True)
class MeasuredRate:
    """A measured rate.

    Attributes:
        rate: Per second.
        is_reliable: True if the rounds have agreed on it.
    """

    rate: float
    is_reliable: bool

    @classmethod
    def of(cls, work: float, found: Timing) -> MeasuredRate:
        """The rate of so much work in so much time."""
        return cls(work / found.seconds, found.is_reliable)


def tflops(device: torch.device, precision: Precision, limit_s: float) -> MeasuredRate:
    """TFLOPS of matrix products; a multiplication and an addition are two operations.

    Args:
        device: Device that computes them.
        precision: Precision of the matrices.
        limit_s: Time limit.
    """
    side = SIDE[device.type]
    if device.type == "cpu":
        small = _product(device, precision, SMALL_SIDE)
        small()
        once_s = min(_round(small, device, 1).seconds for _ in range(MIN_ROUNDS))
        if once_s * (side / SMALL_SIDE) ** 3 > SLOW_S:
            side = SMALL_SIDE
    product = _product(device, precision, side)
    return MeasuredRate.of(2e-12 * side**3, best_s(product, device, limit_s))


def copy_bytes_per_s(device: torch.device, limit_s: float, free_bytes: int) -> MeasuredRate:
    """Bytes read and written per second by a copy within the device's memory.

    Args:
        device: Device with the memory.
        limit_s: Time limit.
        free_bytes: Amount of free memory.
    """
    numbers = max(1, min(COPY_BYTES, free_bytes // 8) // 4)
    source = torch.ones(numbers, device=device)
    target = torch.empty_like(source)
    return MeasuredRate.of(8 * numbers, best_s(lambda: target.copy_(source), device, limit_s))


def best_s(work: Callable[[], object], device: torch.device, limit_s: float) -> Timing:
    """Seconds that one call of `work` takes, in the best of the rounds that fit into `limit_s`, or
    into a few times that if these do not agree.
    """
    work()  # the first call chooses kernels and touches memory
    once_s = min(_round(work, device, 1).seconds for _ in range(MIN_ROUNDS))
    calls = max(1, int(ROUND_S / once_s))
    began = time.perf_counter()
    rounds = [_round(work, device, calls) for _ in range(MIN_ROUNDS)]
    found = timing(rounds)
    while True:
        spent_s = time.perf_counter() - began
        if spent_s >= (limit_s if found.is_reliable else PATIENCE * limit_s):
            return found
        rounds.append(_round(work, device, calls))
        found = timing(rounds)


def _product(device: torch.device, precision: Precision, side: int) -> Callable[[], object]:
    shape = (side, side)
    left, right = (torch.randn(shape, device=device).to(DTYPES[precision]) for _ in range(2))
    result = torch.empty_like(left)
    return lambda: torch.mm(left, right, out=result)


def _round(work: Callable[[], object], device: torch.device, calls: int) -> Round:
    """A round of so many calls, as seconds of one."""
    _await(device)
    waited_s = _waited_s()
    began = time.perf_counter()
    for _ in range(calls):
        work()
    _await(device)
    seconds = time.perf_counter() - began
    return Round(seconds=seconds / calls, waited_s=(_waited_s() - waited_s) / calls)


def _waited_s() -> float:
    """Seconds that the threads of this process have waited for a processor (proc_pid_schedstat(5));
    0 where the kernel does not count that, so that only the agreement of rounds counts.
    """
    total_ns = 0
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError, IndexError, ValueError):  # it has ended, or there is no such file
            total_ns += int((task / "schedstat").read_text().split()[1])
    return 1e-9 * total_ns


def _await(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
