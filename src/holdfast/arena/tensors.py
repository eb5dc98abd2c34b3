"""Views of flat memory as torch tensors."""

from __future__ import annotations

import ctypes
import itertools
import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import torch
from torch.utils.dlpack import from_dlpack

from holdfast.arena.layout import Entry, Field, Layout, is_dense
from holdfast.errors import JobError

DTYPES: Final = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "C64": torch.complex64,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
    "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
_NAMES: Final = {dtype: name for name, dtype in DTYPES.items()}


def field_of(name: str, tensor: torch.Tensor) -> Field:
    """The field that holds `tensor`.

    Raises:
        JobError: Its dtype cannot be laid out, or it is sparse.
    """
    if tensor.layout is not torch.strided:
        raise JobError(f"{name} is a sparse tensor; make it dense")
    if tensor.dtype not in _NAMES:
        known = ", ".join(sorted(str(dtype) for dtype in _NAMES))
        raise JobError(f"{name} has dtype {tensor.dtype}; use one of {known}")
    shape = tuple(tensor.shape)
    strides = tensor.stride()
    # A tensor with gaps becomes contiguous. The stride of a dimension of size 1 means nothing, but
    # kernels look at it, so it is kept, too.
    contiguous = tuple(math.prod(shape[dim + 1 :]) for dim in range(len(shape)))
    keeps = tensor.numel() > 0 and strides != contiguous and is_dense(shape, strides)
    return Field(name, _NAMES[tensor.dtype], shape, strides=strides if keeps else ())


def as_real(tensor: torch.Tensor) -> torch.Tensor:
    """`tensor`, or a complex one as pairs of real numbers."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def view(flat: torch.Tensor, entry: Entry) -> torch.Tensor:
    """The tensor of `entry` inside `flat`, uint8[layout.size_bytes].

    It has a storage of its own over the same memory. Otherwise a change to one tensor would look to
    autograd and the compiler like a change to all.
    """
    part = flat[entry.offset : entry.end].view(DTYPES[entry.dtype]).view(entry.shape)
    tensor: torch.Tensor = from_dlpack(part)
    return tensor.as_strided_(entry.shape, entry.strides) if entry.strides else tensor


def flattened(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The elements of `tensor` in the order in which `like`, which has no gaps, has them in memory;
    a view, if that is its own order.
    """
    if not like.is_contiguous():
        tensor = tensor.permute(field_of("", like).dims)
    return tensor.contiguous().view(-1)


def rearrange(flat: torch.Tensor, stored: Layout, wanted: Layout) -> None:
    """Give the tensors of `stored`, which are in `flat`, the strides that they have in `wanted`."""
    for old, new in zip(stored.entries, wanted.entries, strict=True):
        if old.strides != new.strides:
            view(flat, new).copy_(view(flat, old).clone())


def views(flat: torch.Tensor, layout: Layout) -> dict[str, torch.Tensor]:
    """Every tensor of `layout` inside `flat`, by name."""
    return {entry.name: view(flat, entry) for entry in layout.entries}


def pack_by_dtype(fields: Iterable[Field]) -> Layout:
    """A layout in which fields of one dtype are neighbours, so that these ranges are long."""
    return Layout.pack(sorted(fields, key=lambda field: field.dtype))


def check_separate(tensors: Mapping[str, torch.Tensor], trained: Collection[str]) -> None:
    """Raises: JobError: A `trained` tensor shares memory with another one."""
    ranges = sorted((t.data_ptr(), name) for name, t in tensors.items() if t.data_ptr())
    for (start, name), (other_start, other) in itertools.pairwise(ranges):
        # Elements of tensors with gaps, such as columns of one matrix, may alternate in memory.
        whole = tensors[name].is_contiguous() and tensors[other].is_contiguous()
        overlap = start + tensors[name].nbytes > other_start if whole else start == other_start
        if overlap and (name in trained or other in trained):
            raise JobError(
                f"{name} and {other} share memory, which ends when training begins; make them one "
                "parameter, and take a part or a copy of it in forward"
            )


def write_names(memory: torch.Tensor, names: Sequence[str]) -> None:
    """Write `names` into `memory`, uint8[n].

    Raises:
        JobError: They are too long.
    """
    # Padded with zeros, so that equal names are equal bytes, which `check_names` compares.
    text = json.dumps(names).encode()
    if len(text) > len(memory):
        raise JobError(f"the names {', '.join(names)} are too long; shorten them")
    padded = bytearray(text.ljust(len(memory), b"\0"))
    memory.copy_(torch.frombuffer(padded, dtype=torch.uint8))


def read_names(memory: torch.Tensor) -> list[str]:
    """The names that `write_names` wrote into `memory`."""
    names: list[str] = json.loads(memory.numpy().tobytes().rstrip(b"\0"))
    return names


def lock_pages(memory: torch.Tensor) -> None:
    """Lock memory, so that a GPU reads and writes it by itself, at the speed of its bus. Where that
    is not allowed, its driver copies by way of memory of its own.

    Args:
        memory: Contiguous, and mapped for as long as the process lives.
    """
    runtime: Any = torch.cuda
    if runtime.cudart().cudaHostRegister(memory.data_ptr(), memory.nbytes, 0) != 0:
        with suppress(RuntimeError):  # takes the error, which the next call of CUDA would report
            torch.zeros(1, device="cuda")


def copy_past_cache(target: torch.Tensor, source: torch.Tensor) -> None:
    """Copy to shared memory what this process will not read soon.

    Unlike torch's copy, that of the C library writes long ranges without reading the target first;
    it ends with a store fence.

    Args:
        target: Contiguous.
        source: Contiguous, of the same dtype and number of elements.
    """
    assert target.nbytes == source.nbytes, "a copy between different sizes"
    if source.device.type == "cpu":
        ctypes.memmove(target.data_ptr(), source.data_ptr(), target.nbytes)
    else:
        target.copy_(source)
