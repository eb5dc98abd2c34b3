"""Devices: the device, the precision and the compilation of a worker's model.

Nothing here is called before a worker is forked, because nothing with CUDA may be.
"""

from __future__ import annotations

import re
from typing import Any, Final

import torch
from torch import nn

from holdfast.errors import JobError

MAX_SHAPES: Final = 512
"""For how many shapes of a batch a model is compiled. PyTorch's own limit is 8; further shapes run
uncompiled."""
_LIMIT_HIT: Final = "FailOnRecompileLimitHit"
_NONDETERMINISTIC: Final = re.compile(
    r"(\S+) does not have a deterministic implementation"
    r"|Deterministic behavior was enabled with either .* because it uses (\w+)"
)
"""PyTorch's errors in its deterministic mode; they name an operation or a library."""
_LOW_PRECISIONS: Final = {"bf16": torch.bfloat16, "fp16": torch.float16}


def choose_device(wanted: str, rank: int) -> torch.device:
    """The device of `rank`: GPUs are assigned round-robin.

    Args:
        wanted: `auto`, `cpu` or `cuda`.
        rank: The worker.

    Raises:
        JobError: `cuda` is wanted and there is no GPU.
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
    torch.backends.cudnn.benchmark = False  # it would choose kernels by their speed
    torch.backends.cudnn.deterministic = True
    return device


def refuse_nondeterministic() -> None:
    """Let PyTorch choose deterministic kernels, and raise where an operation has none."""
    # `use_deterministic_algorithms` does this too, but imports the compiler, which takes a second.
    torch.set_deterministic_debug_mode("error")
    # Every tensor is written before it is read; to fill new ones costs 12 to 15 % of a step on GPUs
    # (pytorch#117081).
    settings: Any = torch.utils.deterministic
    settings.fill_uninitialized_memory = False


def to_device(batch: Any, device: torch.device) -> Any:
    """`batch` with every tensor in it, in tuples, lists and dictionaries too, on `device`.

    So is what has a method `to` of its own, such as a BatchEncoding of transformers.
    """
    match batch:
        case torch.Tensor():
            return batch.to(device, non_blocking=True)
        case object(to=to) if callable(to):
            return to(device)
        case tuple() | list():
            parts = [to_device(part, device) for part in batch]
            return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
        case dict():
            return {key: to_device(part, device) for key, part in batch.items()}
    return batch


def autocast(device: torch.device, precision: str, *, enabled: bool = True) -> torch.autocast:
    """A context in which operations choose between float32 and the job's precision."""
    low = _LOW_PRECISIONS.get(precision)
    return torch.autocast(
        device.type, dtype=low or torch.bfloat16, enabled=enabled and low is not None
    )


class WeightCasts:
    """Keeps the weights that autocast has cast, from one shard of a step to the next.

    PyTorch forgets them at the end of the outermost context, of which one is held open here.
    """

    def __init__(self) -> None:
        self._kept = False

    def keep(self) -> None:
        """Keep casts until `forget`."""
        if not self._kept:
            torch.autocast_increment_nesting()
            self._kept = True

    def forget(self) -> None:
        """Forget them: the weights change, or a cast may lack its gradient."""
        if self._kept:
            torch.autocast_decrement_nesting()
            torch.clear_autocast_cache()
            self._kept = False


def compile_every_shape(module: nn.Module) -> None:
    """Compile `module` so that the code for a shape does not depend on earlier shapes: which shapes
    a worker sees first depends on the number of workers.
    """
    from torch._dynamo import config  # takes a second to import

    config.recompile_limit = config.accumulated_recompile_limit = MAX_SHAPES
    config.fail_on_recompile_limit_hit = True
    if torch.are_deterministic_algorithms_enabled():
        from torch._inductor import config as of_kernels

        if hasattr(of_kernels, "deterministic"):  # from torch 2.10 on
            of_kernels.deterministic = True  # else it chooses kernels by their speed
    module.compile(dynamic=False)


def explain(error: BaseException) -> BaseException:
    """`error`, or a JobError instead if there were too many shapes, or if an operation has no
    deterministic kernel.
    """
    if isinstance(error, RuntimeError) and (found := _NONDETERMINISTIC.match(str(error))):
        advice = "use another operation" if found[1] else "leave CUBLAS_WORKSPACE_CONFIG as it is"
        return JobError(
            f"{found[1] or found[2]} has no deterministic kernel here, so weights would differ "
            f"from run to run; {advice}, or set numerics=fast"
        ).with_traceback(error.__traceback__)
    if type(error).__name__ != _LIMIT_HIT:
        return error
    return JobError(
        f"the model was compiled for more than {MAX_SHAPES} shapes or kinds of input; pad batches "
        "to fewer shapes, or set compile=false"
    )
