"""Self-test: which kernels of this host are not reproducible across alignments or batch sizes.

Libraries choose their code by the address and the shape of a tensor, and may compute the last
elements of a vector with other code than the rest. Both are documented: oneMKL Developer Guide,
"Obtaining Numerically Reproducible Results"; PyTorch, "Numerical accuracy". The kernels of
the reduction must be reproducible, because the number of workers decides where the gradient is cut.
Those of a model need not be, because every shard has the same shape and alignment on every worker.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

import torch
import torch.nn.functional as F

from holdfast.arena.layout import ALIGNMENT
from holdfast.collectives.slot import square
from holdfast.errors import JobError
from holdfast.rundir.run_directory import log_event

Kernel = Callable[[torch.Tensor], torch.Tensor]

_ROWS = 12
_COLUMNS = 77  # no multiple of a vector's length
_DTYPES = (torch.float32, torch.bfloat16)
_OFFSETS = (1, 3, 8)
"""Elements by which a tensor is shifted."""
_PARTS = ((0, 1), (1, 4), (5, 11))
"""Ranges of rows that are computed without the others."""

_MODEL: Final[Mapping[str, Kernel]] = MappingProxyType(
    {
        "linear": lambda a: F.linear(a, torch.ones_like(a)[:8].cumsum(0)),
        "sum": lambda a: a.sum(-1),
        "softmax": lambda a: a.softmax(-1),
        "layer_norm": lambda a: F.layer_norm(a, a.shape[-1:]),
        "exp": torch.exp,
        "gelu": F.gelu,
        "sigmoid": torch.sigmoid,
        "tanh": torch.tanh,
        "rsqrt": lambda a: a.abs().rsqrt(),
    }
)
_REDUCTION: Final[Mapping[str, Kernel]] = MappingProxyType(
    {
        "add": lambda a: torch.add(a, a.roll(1, -1), out=torch.empty_like(a)),
        "mul": lambda a: torch.mul(a, 1 / 3, out=torch.empty_like(a)),
    }
)


@dataclass(frozen=True, slots=True)
class SensitiveKernels:
    """Kernels whose bits depend on more than the values of their input.

    Attributes:
        reduction: Kernels of the reduction that depend on alignment or batch size.
        alignment_sensitive: Kernels of common models that depend on the address of a tensor.
        batch_sensitive: Kernels of common models that depend on the number of rows.
    """

    reduction: tuple[str, ...]
    alignment_sensitive: tuple[str, ...]
    batch_sensitive: tuple[str, ...]


@functools.cache
def sensitive_kernels() -> SensitiveKernels:
    """Test the kernels of this host, once; takes about 10 ms."""
    reduction = (
        n
        for n, kernel in _REDUCTION.items()
        if alignment_sensitive(kernel) or batch_sensitive(kernel)
    )
    return SensitiveKernels(
        reduction=(*reduction, *(() if _norm_is_reproducible() else ("dot",))),
        alignment_sensitive=tuple(
            n for n, k in {"dot": _dot, **_MODEL}.items() if alignment_sensitive(k)
        ),
        batch_sensitive=tuple(name for name, kernel in _MODEL.items() if batch_sensitive(kernel)),
    )


def log_sensitive_kernels(run_dir: Path) -> None:
    """Log which kernels of this host depend on alignment or on batch size."""
    kernels = sensitive_kernels()
    log_event(
        run_dir,
        "kernels-tested",
        alignment_sensitive=", ".join(kernels.alignment_sensitive) or "none",
        batch_sensitive=", ".join(kernels.batch_sensitive) or "none",
    )


def check_reduction() -> None:
    """Raises: JobError: Sums of gradients would depend on how many workers there are."""
    sensitive = sensitive_kernels().reduction
    if sensitive:
        raise JobError(
            f"torch.{' and torch.'.join(sensitive)} is not reproducible across memory alignments "
            "on this host, so the weights would depend on the number of workers. Use another build "
            "of torch, or another host"
        )


def alignment_sensitive(kernel: Kernel) -> bool:
    """True if a kernel's bits depend on where its input begins."""
    return any(
        not torch.equal(kernel(_moved(inputs, offset)), kernel(inputs))
        for inputs in _inputs()
        for offset in _OFFSETS
    )


def batch_sensitive(kernel: Kernel) -> bool:
    """True if a kernel's bits for a row depend on how many rows are computed together."""
    return any(
        not torch.equal(kernel(inputs[start:end].clone()), whole[start:end])
        for inputs in _inputs()
        for whole in [kernel(inputs)]
        for start, end in _PARTS
    )


def _dot(a: torch.Tensor) -> torch.Tensor:
    return torch.dot(a.flatten(), a.flatten())


def _norm_is_reproducible() -> bool:
    """True if a norm does not depend on the addresses of its blocks, aligned as all blocks are."""
    inputs = next(_inputs()).flatten()
    each = ALIGNMENT // inputs.element_size()
    return len({square(_moved(inputs, places * each)) for places in range(4)}) == 1


def _inputs() -> Iterator[torch.Tensor]:
    """Equal numbers in each dtype, [_ROWS, _COLUMNS]."""
    numbers = torch.linspace(-3, 3, _ROWS * _COLUMNS).sin().view(_ROWS, _COLUMNS)
    return (numbers.to(dtype) for dtype in _DTYPES)


def _moved(tensor: torch.Tensor, offset: int) -> torch.Tensor:
    """A copy that begins `offset` elements after a multiple of ALIGNMENT."""
    memory = torch.empty(tensor.numel() + offset + ALIGNMENT, dtype=tensor.dtype)
    # The memory begins anywhere, so aim at a known distance from an aligned address.
    lead = -memory.data_ptr() % ALIGNMENT // tensor.element_size() + offset
    return memory[lead : lead + tensor.numel()].view(tensor.shape).copy_(tensor)
