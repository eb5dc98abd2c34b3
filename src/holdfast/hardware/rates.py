"""Rates: matrix products and copies of a device, by torch.

The best of many short rounds counts: other processes can make a round slower, never faster.
"""

from __future__ import annotations

import time
from collections.abc import Callable
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


def tflops(device: torch.device, precision: Precision, limit_s: float) -> float:
    """TFLOPS of matrix products; a multiplication and an addition are two operations.

    Args:
        device: Where they are computed.
        precision: Of the matrices.
        limit_s: How long to measure.
    """
    side = SIDE[device.type]
    if device.type == "cpu":
        small = _product(device, precision, SMALL_SIDE)
        small()
        if _seconds(small, device, 1) * (side / SMALL_SIDE) ** 3 > SLOW_S:
            side = SMALL_SIDE
    product = _product(device, precision, side)
    return 2e-12 * side**3 / best_s(product, device, limit_s)


def copy_bytes_per_s(device: torch.device, limit_s: float, free_bytes: int) -> float:
    """Bytes read and written per second by a copy within the device's memory.

    Args:
        device: Whose memory.
        limit_s: How long to measure.
        free_bytes: How much memory is free.
    """
    numbers = max(1, min(COPY_BYTES, free_bytes // 8) // 4)
    source = torch.ones(numbers, device=device)
    target = torch.empty_like(source)
    return 8 * numbers / best_s(lambda: target.copy_(source), device, limit_s)


def best_s(work: Callable[[], object], device: torch.device, limit_s: float) -> float:
    """Seconds that one call of `work` takes, in the best of the rounds that fit into `limit_s`."""
    work()  # the first call chooses kernels and touches memory
    once_s = _seconds(work, device, 1)
    calls = max(1, int(ROUND_S / once_s))
    best, rounds, until = once_s, 0, time.perf_counter() + limit_s
    while rounds < MIN_ROUNDS or time.perf_counter() < until:
        best = min(best, _seconds(work, device, calls) / calls)
        rounds += 1
    return best


def _product(device: torch.device, precision: Precision, side: int) -> Callable[[], object]:
    shape = (side, side)
    left, right = (torch.randn(shape, device=device).to(DTYPES[precision]) for _ in range(2))
    result = torch.empty_like(left)
    return lambda: torch.mm(left, right, out=result)


def _seconds(work: Callable[[], object], device: torch.device, calls: int) -> float:
    """Seconds until so many calls are done."""
    _await(device)
    began = time.perf_counter()
    for _ in range(calls):
        work()
    _await(device)
    return time.perf_counter() - began


def _await(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
