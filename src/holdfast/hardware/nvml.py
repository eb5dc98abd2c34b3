"""NVML: what NVIDIA's driver reports of GPUs, by its library `libnvidia-ml.so.1`.

A card reports only some values; each may be absent.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
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
_THROTTLED_BY: Final = sum(SLOWED_BY) & ~pynvml.nvmlClocksEventReasonSyncBoost
ASK_EVERY_S: Final = 1.0
_VIOLATIONS: Final = pynvml.NVML_PERF_POLICY_POWER, pynvml.NVML_PERF_POLICY_THERMAL

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverGpu:
    """A GPU, or an instance of one (MIG), as the driver knows it.

    Attributes:
        number: Number of the driver; those of instances follow.
        uuid: Such as `GPU-…` or `MIG-…`.
        name: Name that its maker gives it.
        cores: CUDA cores.
        memory_bytes: Its memory.
        capability: CUDA compute capability; empty if not known.
        state: State that it reports.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuNames:
    """Names of a GPU for CUDA.

    Attributes:
        uuid: Such as `GPU-…`.
        instances: The UUIDs `MIG-…` of its instances by the names that drivers before R470 give
            them, `MIG-GPU-…/1/0`; None if it is not divided.
    """

    uuid: str
    instances: dict[str, str] | None

    @property
    def uuids(self) -> tuple[str, ...]:
        """UUIDs of what a process can compute on: its instances, or itself."""
        return (self.uuid,) if self.instances is None else tuple(self.instances.values())

    def named(self, name: str) -> tuple[str, ...]:
        """UUIDs that a name means, which CUDA allows to be the beginning of one."""
        instances = (self.instances or {}).items()
        found = (uuid for old, uuid in instances if name == old or uuid.startswith(name))
        return self.uuids if self.uuid.startswith(name) else tuple(found)


class GpuThrottling:
    """Counts the time for which heat or its power limit has slowed down a GPU.

    The driver counts it on most cards for servers. On others, the current reasons for a reduced
    clock are looked at. Nothing is counted if there is no driver, or it does not know the GPU. It
    is asked once a second; in between, the share that it gave last counts.

    Args:
        uuid: UUID of the driver, such as `GPU-…`.
        clock: Gives the time, seconds.
    """

    def __init__(self, uuid: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._handle = _known(lambda: _opened(uuid))
        self._clock = clock
        self._asked_at = clock()
        self._counted = self._violations()
        self._share = 0.0

    def since_last_ns(self, computed_ns: int) -> int:
        """The time since the last call, or since this object was made, nanoseconds.

        Args:
            computed_ns: Time that the GPU has computed meanwhile.
        """
        seconds = self._clock() - self._asked_at
        if seconds >= ASK_EVERY_S:
            self._asked_at += seconds
            before = self._counted
            self._counted = self._violations()
            # All or nothing, if the driver only knows whether the GPU is slowed down now.
            is_throttled = self._handle is not None and _reasons(self._handle) & _THROTTLED_BY
            self._share = 1.0 if is_throttled else 0.0
            if self._counted:  # the longer of both, since they may have been at the same time
                rises = [count - before.get(kind, count) for kind, count in self._counted.items()]
                self._share = min(1.0, max(0, *rises) / (1e9 * seconds))
        return round(self._share * computed_ns)

    def _violations(self) -> dict[int, int]:
        """Nanoseconds of each kind since the driver was loaded; without those that it refuses."""
        handle = self._handle
        if handle is None:
            return {}
        found = {kind: _known(partial(_violation_ns, handle, kind)) for kind in _VIOLATIONS}
        return {kind: count for kind, count in found.items() if count is not None}


class Driver:
    """NVIDIA's driver, read again and again; it stays open as long as this process lives."""

    def __init__(self) -> None:
        _known(pynvml.nvmlInit)

    @property
    def version(self) -> str:
        """Its version, such as `580.65.06`; empty if there is none."""
        return str(_known(pynvml.nvmlSystemGetDriverVersion) or "")

    def gpus(self) -> list[DriverGpu]:
        """GPUs that answer, then the instances (MIG) of divided ones; none if no driver works."""
        return _known(_listed) or []


def driver_gpus() -> tuple[list[DriverGpu], str]:
    """The GPUs of `Driver.gpus`, and why there are none, in words; empty if it works."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError_LibraryNotFound:
        return [], "no GPU: there is no NVIDIA driver (libnvidia-ml.so.1)"
    except pynvml.NVMLError as error:
        why = str(error).rstrip(".")
        return [], f"no GPU: the NVIDIA driver does not work ({why}); install or load it again"
    try:
        return _listed(), ""
    except pynvml.NVMLError as error:
        return [], f"no GPU: the NVIDIA driver lists none ({error})"
    finally:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def gpu_names() -> list[GpuNames]:
    """Names of all GPUs of the driver, in its order; none if it does not work."""
    try:
        pynvml.nvmlInit()
        return [_names(number) for number in range(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError:
        return []
    finally:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def _names(number: int) -> GpuNames:
    handle = pynvml.nvmlDeviceGetHandleByIndex(number)
    uuid = str(pynvml.nvmlDeviceGetUUID(handle))
    found = _instances(handle)
    if found is None:
        return GpuNames(uuid=uuid, instances=None)
    instances = {}
    for each in found:
        gpu = pynvml.nvmlDeviceGetGpuInstanceId(each)
        compute = pynvml.nvmlDeviceGetComputeInstanceId(each)
        instances[f"MIG-{uuid}/{gpu}/{compute}"] = str(pynvml.nvmlDeviceGetUUID(each))
    return GpuNames(uuid=uuid, instances=instances)


def _instances(handle: object) -> list[object] | None:
    """The driver's handles of the instances of a GPU; None if it is not divided."""
    mode = _known(lambda: pynvml.nvmlDeviceGetMigMode(handle)[0])
    if mode != pynvml.NVML_DEVICE_MIG_ENABLE:
        return None
    places = range(int(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)))
    open_at = partial(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle)
    found = (_known(partial(open_at, place)) for place in places)
    return [each for each in found if each is not None]


def _listed() -> list[DriverGpu]:
    open_at = pynvml.nvmlDeviceGetHandleByIndex
    count = int(pynvml.nvmlDeviceGetCount())
    gpus = [_known(partial(open_at, number)) for number in range(count)]
    instances = [each for gpu in gpus if gpu is not None for each in _instances(gpu) or ()]
    numbered = enumerate([*gpus, *instances])
    return [_gpu(number, handle) for number, handle in numbered if handle is not None]


def _gpu(number: int, handle: object) -> DriverGpu:
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
    sensor = pynvml.NVML_TEMPERATURE_GPU
    clock = pynvml.NVML_CLOCK_SM
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
    reasons = _reasons(handle)
    return tuple(words for bit, words in SLOWED_BY.items() if reasons & bit)


def _reasons(handle: object) -> int:
    """Why the clock is reduced now, a bit each; 0 if that is not reported."""
    reasons = _known(lambda: int(pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle)))
    if reasons is None:  # older drivers have another name for them
        reasons = _known(lambda: int(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)))
    return reasons or 0


def _opened(uuid: str) -> object:
    """The driver's handle of a GPU, for as long as this process lives."""
    pynvml.nvmlInit()
    return pynvml.nvmlDeviceGetHandleByUUID(uuid)


def _violation_ns(handle: object, kind: int) -> int:
    return int(pynvml.nvmlDeviceGetViolationStatus(handle, kind).violationTime)


def _known(read: Callable[[], T]) -> T | None:
    """Result of `read`; None if the card or the driver does not report it."""
    try:
        return read()
    except pynvml.NVMLError:
        return None
