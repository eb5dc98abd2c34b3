"""Which device a worker computes on. Asked in the worker only: nothing with CUDA may be forked."""

from __future__ import annotations

from typing import Any

import torch

from holdfast.errors import JobError


def choose(wanted: str, rank: int) -> torch.device:
    """The device of `rank`: GPUs are dealt out in turn, and shared where they are fewer.

    Args:
        wanted: `auto`, `cpu` or `cuda`.
        rank: The worker.

    Raises:
        JobError: `cuda` is wanted and there is none.
    """
    if wanted == "cpu" or (wanted == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise JobError(
            f"device=cuda, but torch {torch.__version__} finds no GPU on this host; "
            "set device=cpu, or install the driver and a build of torch for it"
        )
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    torch.backends.cudnn.benchmark = False  # it would choose kernels by how fast they just were
    torch.backends.cudnn.deterministic = True
    return device


def moved(batch: Any, device: torch.device) -> Any:
    """`batch` with every tensor in it, in tuples, lists and dictionaries too, on `device`."""
    match batch:
        case torch.Tensor():
            return batch.to(device, non_blocking=True)
        case tuple() | list():
            parts = [moved(part, device) for part in batch]
            return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
        case dict():
            return {key: moved(part, device) for key, part in batch.items()}
    return batch
