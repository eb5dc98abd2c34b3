"""NVML: what NVIDIA's driver reports of GPUs, by its library `libnvidia-ml.so.1`.

A card reports only some values; each may be absent.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, TypeVar

import pynvml

from holdfast.hardware.profile import GpuState

SLOWED_BY: Final = {
    pynvml.nvmlClocksEventReasonSwPowerCap: "power cap",
    pynvml.nvmlClocksEventReasonHwSlowdown: "hardware slowdown",
    pynvml.nvmlClocksEventReasonSwThermalSlowdown: "heat",
    pynvml.nvmlClocksEventReasonHwThermalSlowdown: "heat (hardware limit)",
    pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown: "power brake",
    pynvml.nvmlClocksEventReasonSyncBoost: "sync boost",
}
"""Reasons for a reduced clock that a person may do something about."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverGpu:
    """A GPU as the driver knows it.

    Attributes:
        number: Of the driver.
        uuid: Such as `GPU-…`.
        name: What its maker calls it.
        cores: CUDA cores.
        memory_bytes: Its memory.
        capability: CUDA compute capability; empty if not known.
        state: What it reports of itself.
    """

    number: int
    uuid: str
    name: str
    cores: int | None
    memory_bytes: int | None
    capability: str
    state: GpuState

    @property
    def peak_tflops(self) -> float | None:
        """TFLOPS in fp32 that it can reach at most: a core multiplies and adds in each cycle.

        The clock is its highest one; that which it has, if it is slowed down under load.
        """
        is_held_back = bool(self.state.slowed_by) and bool(self.state.utilization)
        clock_mhz = self.state.clock_mhz if is_held_back else None
        clock_mhz = clock_mhz or self.state.max_clock_mhz
        return 2e-6 * self.cores * clock_mhz if self.cores and clock_mhz else None


def driver_gpus() -> tuple[list[DriverGpu], str]:
    """All GPUs of the driver, and why there are none, in words; the latter is empty if it works."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError_LibraryNotFound:
        return [], "no GPU: there is no NVIDIA driver (libnvidia-ml.so.1)"
    except pynvml.NVMLError as error:
        why = str(error).rstrip(".")
        return [], f"no GPU: the NVIDIA driver does not work ({why}); install or load it again"
    try:
        return [_gpu(number) for number in range(pynvml.nvmlDeviceGetCount())], ""
    except pynvml.NVMLError as error:
        return [], f"no GPU: the NVIDIA driver lists none ({error})"
    finally:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def _gpu(number: int) -> DriverGpu:
    handle = pynvml.nvmlDeviceGetHandleByIndex(number)
    memory = _known(lambda: pynvml.nvmlDeviceGetMemoryInfo(handle))
    capability = _known(lambda: pynvml.nvmlDeviceGetCudaComputeCapability(handle))
    return DriverGpu(
        number=number,
        uuid=_known(lambda: str(pynvml.nvmlDeviceGetUUID(handle))) or "",
        name=_known(lambda: str(pynvml.nvmlDeviceGetName(handle))) or f"GPU {number}",
        cores=_known(lambda: int(pynvml.nvmlDeviceGetNumGpuCores(handle))),
        memory_bytes=None if memory is None else int(memory.total),
        capability="" if capability is None else ".".join(map(str, capability)),
        state=_state(handle, None if memory is None else int(memory.used)),
    )


def _state(handle: object, used_bytes: int | None) -> GpuState:
    sensor, clock = pynvml.NVML_TEMPERATURE_GPU, pynvml.NVML_CLOCK_SM
    power_mw = _known(lambda: int(pynvml.nvmlDeviceGetPowerUsage(handle)))
    limit_mw = _known(lambda: int(pynvml.nvmlDeviceGetEnforcedPowerLimit(handle)))
    percent = _known(lambda: int(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu))
    return GpuState(
        temperature_c=_known(lambda: float(pynvml.nvmlDeviceGetTemperature(handle, sensor))),
        power_w=None if power_mw is None else power_mw / 1e3,
        power_limit_w=None if limit_mw is None else limit_mw / 1e3,
        utilization=None if percent is None else min(1.0, percent / 100),
        clock_mhz=_known(lambda: float(pynvml.nvmlDeviceGetClockInfo(handle, clock))),
        max_clock_mhz=_known(lambda: float(pynvml.nvmlDeviceGetMaxClockInfo(handle, clock))),
        used_bytes=used_bytes,
        slowed_by=_slowed_by(handle),
    )


def _slowed_by(handle: object) -> tuple[str, ...]:
    reasons = _known(lambda: int(pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle)))
    if reasons is None:  # older drivers have another name for them
        reasons = _known(lambda: int(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)))
    return tuple(words for bit, words in SLOWED_BY.items() if (reasons or 0) & bit)


def _known(read: Callable[[], T]) -> T | None:
    """What `read` returns; None if the card or the driver does not report it."""
    try:
        return read()
    except pynvml.NVMLError:
        return None
