"""CUDA memory: device memory on a GPU, through the virtual memory calls of NVIDIA's driver.

    owner   create ─▶ map ─▶ export: a descriptor ─▶ release: mapping and descriptor keep it
    peer    import ─▶ map ─▶ release               ─▶ copy from it ─▶ unmap

The driver frees the memory once nothing maps it and all descriptors are closed; see "Virtual Memory
Management" in the CUDA driver API. `cudaMalloc` has no such descriptors.
"""

from __future__ import annotations

import ctypes
import functools
import os
from contextlib import ExitStack
from typing import Any, Final

import torch

_PINNED: Final = 1  # CU_MEM_ALLOCATION_TYPE_PINNED
_ON_DEVICE: Final = 1  # CU_MEM_LOCATION_TYPE_DEVICE
_DESCRIPTOR: Final = 1  # CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
_READ: Final = 1  # CU_MEM_ACCESS_FLAGS_PROT_READ
_READ_WRITE: Final = 3  # CU_MEM_ACCESS_FLAGS_PROT_READWRITE
_MINIMUM: Final = 0  # CU_MEM_ALLOC_GRANULARITY_MINIMUM

_LIBRARY: Final = "libcuda.so.1"
_SIZE: Final = ctypes.c_size_t
_ADDRESS: Final = ctypes.c_uint64  # CUdeviceptr
_HANDLE: Final = ctypes.c_uint64  # CUmemGenericAllocationHandle


class _Location(ctypes.Structure):
    """CUmemLocation."""

    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _Flags(ctypes.Structure):
    """CUmemAllocationProp.allocFlags."""

    _fields_ = (
        ("compression", ctypes.c_ubyte),
        ("rdma", ctypes.c_ubyte),
        ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 4),
    )


class _Properties(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", _Location),
        ("win32", ctypes.c_void_p),
        ("flags", _Flags),
    )


class _Access(ctypes.Structure):
    """CUmemAccessDesc."""

    _fields_ = (("location", _Location), ("flags", ctypes.c_int))


@functools.cache
def _driver() -> Any:
    driver = ctypes.CDLL(_LIBRARY)
    signatures = {
        "cuMemGetAllocationGranularity": (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int),
        "cuMemCreate": (ctypes.c_void_p, _SIZE, ctypes.c_void_p, ctypes.c_uint64),
        "cuMemAddressReserve": (ctypes.c_void_p, _SIZE, _SIZE, _ADDRESS, ctypes.c_uint64),
        "cuMemMap": (_ADDRESS, _SIZE, _SIZE, _HANDLE, ctypes.c_uint64),
        "cuMemSetAccess": (_ADDRESS, _SIZE, ctypes.c_void_p, _SIZE),
        "cuMemExportToShareableHandle": (
            ctypes.c_void_p,
            _HANDLE,
            ctypes.c_int,
            ctypes.c_uint64,
        ),
        "cuMemImportFromShareableHandle": (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int),
        "cuMemUnmap": (_ADDRESS, _SIZE),
        "cuMemAddressFree": (_ADDRESS, _SIZE),
        "cuMemRelease": (_HANDLE,),
        "cuMemcpyAsync": (_ADDRESS, _ADDRESS, _SIZE, ctypes.c_void_p),
        "cuGetErrorString": (ctypes.c_int, ctypes.c_void_p),
    }
    for name, arguments in signatures.items():
        if not hasattr(driver, name):
            raise OSError(f"the driver of NVIDIA has no {name}; update it")
        getattr(driver, name).argtypes = arguments
    return driver


def _call(device: torch.device, name: str, *arguments: Any) -> None:
    """Call the driver.

    Raises:
        OSError: The call fails.
    """
    if (code := getattr(_driver(), name)(*arguments)) != 0:
        words = ctypes.c_char_p()
        _driver().cuGetErrorString(code, ctypes.byref(words))
        said = (words.value or b"unknown error").decode()
        raise OSError(f"{name} on {device}: {said} ({code})")


class _Mapping:
    """Memory of a GPU in the addresses of this process.

    Args:
        device: Device that reads it, or also writes to it.
        handle: The memory, which is released.
        size_bytes: Its size.
        flags: Access of the device.
    """

    def __init__(self, device: torch.device, handle: int, size_bytes: int, flags: int) -> None:
        self._device = device
        self._size = size_bytes
        address = _ADDRESS()
        with ExitStack() as undo:
            undo.callback(_call, device, "cuMemRelease", handle)
            _call(device, "cuMemAddressReserve", ctypes.byref(address), size_bytes, 0, 0, 0)
            self.address = address.value
            undo.callback(_call, device, "cuMemAddressFree", self.address, size_bytes)
            _call(device, "cuMemMap", self.address, size_bytes, 0, handle, 0)
            undo.callback(_call, device, "cuMemUnmap", self.address, size_bytes)
            access = _Access(_Location(_ON_DEVICE, device.index), flags)
            _call(device, "cuMemSetAccess", self.address, size_bytes, ctypes.byref(access), 1)
            undo.pop_all()
        # The mapping keeps the memory from here on.
        _call(device, "cuMemRelease", handle)

    def close(self) -> None:
        """Unmap it."""
        _call(self._device, "cuMemUnmap", self.address, self._size)
        _call(self._device, "cuMemAddressFree", self.address, self._size)


class CudaMemory:
    """Memory of this process on a GPU; implements `OwnMemory`. It lasts as long as the process.

    Args:
        device: The GPU, with its index.
        size_bytes: Its size.

    Raises:
        OSError: There is not enough, or it cannot be shared.
    """

    def __init__(self, device: torch.device, size_bytes: int) -> None:
        torch.cuda.synchronize(device)  # makes the context in which torch computes
        properties = ctypes.byref(_properties(device))
        size_bytes = _whole(device, size_bytes)
        handle = _HANDLE()
        _call(device, "cuMemCreate", ctypes.byref(handle), size_bytes, properties, 0)
        fd = ctypes.c_int(-1)
        with ExitStack() as undo:
            undo.callback(_call, device, "cuMemRelease", handle)
            to_descriptor = (handle, _DESCRIPTOR, 0)
            _call(device, "cuMemExportToShareableHandle", ctypes.byref(fd), *to_descriptor)
            undo.pop_all()
        self.fd = fd.value
        with ExitStack() as undo:
            undo.callback(os.close, self.fd)
            self._mapping = _Mapping(device, handle.value, size_bytes, _READ_WRITE)
            undo.callback(self._mapping.close)
            self.bytes = tensor_at(device, self._mapping.address, size_bytes).zero_()
            undo.pop_all()


class CudaPeer:
    """Memory of another process on a GPU, perhaps another one; implements `PeerMemory`.

    It is no tensor: torch would give that the other device, and make a context there.

    Args:
        device: The GPU that reads it, with its index.
        fd: Descriptor of the memory; the caller closes it.
        size_bytes: Its size.

    Raises:
        OSError: It cannot be mapped.
    """

    def __init__(self, device: torch.device, fd: int, size_bytes: int) -> None:
        self._device = device
        size_bytes = _whole(device, size_bytes)
        handle = _HANDLE()
        into = ctypes.byref(handle)
        _call(device, "cuMemImportFromShareableHandle", into, fd, _DESCRIPTOR)
        self._mapping = _Mapping(device, handle.value, size_bytes, _READ)

    def read(self, start: int, target: torch.Tensor) -> None:
        """Implements `PeerMemory.read`."""
        source = self._mapping.address + start
        stream = torch.cuda.current_stream(self._device).cuda_stream
        copied = (target.data_ptr(), source, target.numel(), stream)
        # The default stream has no handle: it is that of the current device.
        with torch.cuda.device(self._device):
            _call(self._device, "cuMemcpyAsync", *copied)

    def close(self) -> None:
        """Implements `PeerMemory.close`."""
        torch.cuda.current_stream(self._device).synchronize()  # it may still be copied from
        self._mapping.close()


def tensor_at(device: torch.device, address: int, size_bytes: int) -> torch.Tensor:
    """The memory at an address of a GPU, uint8[size_bytes]."""
    memory = _Array(address, size_bytes)
    tensor: torch.Tensor = torch.as_tensor(memory, device=device)
    return tensor


class _Array:
    """An array of bytes on a GPU, as torch takes it from other libraries."""

    def __init__(self, address: int, size_bytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size_bytes,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }


def _properties(device: torch.device) -> _Properties:
    location = _Location(_ON_DEVICE, device.index)
    return _Properties(type=_PINNED, handle_types=_DESCRIPTOR, location=location)


def _whole(device: torch.device, size_bytes: int) -> int:
    """A size rounded up to what the driver allocates; the same for an owner and its peers."""
    unit = _SIZE()
    wanted = (ctypes.byref(_properties(device)), _MINIMUM)
    _call(device, "cuMemGetAllocationGranularity", ctypes.byref(unit), *wanted)
    return -(-size_bytes // unit.value) * unit.value
