"""Devices: the device, the precision and the compilation of a worker's model, and batches on it.

Nothing here is called before a worker is forked, because nothing with CUDA may be.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from holdfast.data.dataset import Batch
from holdfast.data.loading.loaded import Loaded
from holdfast.errors import DataError, JobError
from holdfast.linux.supply import VISIBLE

MAX_SHAPES: Final = 512
"""For how many shapes of a batch a model is compiled. PyTorch's own limit is 8; further shapes run
uncompiled."""
_LIMIT_HIT: Final = "FailOnRecompileLimitHit"
_NONDETERMINISTIC: Final = re.compile(
    r"(\S+) does not have a deterministic implementation"
    r"|Deterministic behavior was enabled with either .* because it uses (\w+)"
)
"""PyTorch's errors in its deterministic mode; they name an operation or a library."""
_PLAIN: Final = (torch.Tensor, str, int, float)
"""Parts of a batch in which no tensor is hidden."""
_LOW_PRECISIONS: Final = {"bf16": torch.bfloat16, "fp16": torch.float16}


def device_of(wanted: str, slot: int) -> torch.device:
    """The device of a worker: the GPUs that it sees are assigned round-robin on each host.

    Args:
        wanted: `auto`, `cpu` or `cuda`.
        slot: The worker's number among those of its host.
    """
    if wanted == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", slot % torch.cuda.device_count())


def choose_device(wanted: str, slot: int) -> torch.device:
    """The device of a worker, which CUDA uses from now on; see `device_of`.

    Raises:
        JobError: `cuda` is wanted and there is no GPU.
    """
    device = device_of(wanted, slot)
    if device.type == "cpu":
        if wanted == "cuda":
            raise JobError(_no_gpu(os.environ))
        return device
    torch.cuda.set_device(device)
    torch.backends.cudnn.benchmark = False  # it would choose kernels by their speed
    torch.backends.cudnn.deterministic = True
    return device


def _no_gpu(environment: Mapping[str, str]) -> str:
    names = environment.get(VISIBLE)
    if names is None:
        remedy = "set device=cpu, or install the driver and a build of torch for it"
    else:
        remedy = (
            f"{VISIBLE}={names!r} limits it. Set resources.gpus=1 where an engine gives "
            "GPUs, or correct the variable"
        )
    return f"device=cuda, but torch {torch.__version__} finds no GPU on this host; {remedy}"


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


class SideStream:
    """A stream of a GPU on which it copies while it computes on another one."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def entered(self) -> AbstractContextManager[object]:
        """A context in which copies are put on this stream."""
        return torch.cuda.stream(self._stream)

    def mark(self) -> torch.cuda.Event:
        """Mark the end of what is on this stream now."""
        mark: torch.cuda.Event = self._stream.record_event()
        return mark

    def join(self, mark: torch.cuda.Event, tensors: Iterable[torch.Tensor]) -> None:
        """Let the GPU compute with `tensors`, which were copied here, once it has passed `mark`."""
        current = torch.cuda.current_stream(self._device)
        current.wait_event(mark)
        for tensor in tensors:
            # Else the next copy may get their memory while kernels of this shard still read it.
            tensor.record_stream(current)


class DeviceBatches:
    """Copies batches to a device, the next one while the current one is computed.

    Args:
        device: The device.
        side: Stream for copies; None if nothing is copied ahead.
    """

    def __init__(self, device: torch.device, side: SideStream | None) -> None:
        self._device = device
        self._side = side
        self._expected: Loaded | None = None
        self._copied: tuple[Batch, torch.cuda.Event] | None = None

    @classmethod
    def of(cls, device: torch.device) -> DeviceBatches:
        """Batches of a worker that computes on `device`."""
        return cls(device, SideStream(device) if device.type == "cuda" else None)

    def take(self, loaded: Loaded) -> Batch:
        """The batch of the current shard, on the device."""
        expected = self._expected
        self._expected = None
        # Another plan, or a result in doubt: a shard is computed that was not expected.
        if self._side is None or self._copied is None or expected is not loaded:
            return loaded.batch if self._device.type == "cpu" else self._copy(loaded)
        batch, mark = self._copied
        self._copied = None
        self._side.join(mark, filter(torch.is_tensor, tree_leaves(batch)))
        return batch

    def copy_ahead(self, loaded: Loaded | None) -> None:
        """Begin to copy what is probably taken next; None if it is not known."""
        if self._side is None or loaded is None or loaded is self._expected:
            return
        # The tensors of other objects are not known, so those are copied when they are taken.
        if not all(each is None or isinstance(each, _PLAIN) for each in tree_leaves(loaded.batch)):
            return
        with self._side.entered():
            batch = self._copy(loaded)
        self._copied = batch, self._side.mark()
        self._expected = loaded

    def _copy(self, loaded: Loaded) -> Batch:
        return to_device(loaded.batch, self._device)


def autocast(
    device: torch.device, precision: str, *, enabled: bool = True
) -> AbstractContextManager[object]:
    """A context in which operations choose between float32 and the job's precision."""
    low = _LOW_PRECISIONS.get(precision) if enabled else None
    if low is None and not torch.is_autocast_enabled(device.type):
        return nullcontext()
    return torch.autocast(device.type, dtype=low or torch.bfloat16, enabled=low is not None)


class WeightCasts:
    """Keeps the weights that autocast has cast, from one shard of a step to the next.

    PyTorch forgets them at the end of the outermost context, of which one is held open here.

    Args:
        precision: The job's; with fp32 there are none.
    """

    def __init__(self, precision: str) -> None:
        self._is_needed = precision in _LOW_PRECISIONS
        self._kept = False

    def keep(self) -> None:
        """Keep casts until `forget`."""
        if self._is_needed and not self._kept:
            torch.autocast_increment_nesting()
            self._kept = True

    def forget(self) -> None:
        """Forget them: the weights change, or a cast may lack its gradient."""
        if self._kept:
            torch.autocast_decrement_nesting()
            torch.clear_autocast_cache()
            self._kept = False


def compile_module(module: nn.Module) -> None:
    """Compile `module`, as `module.compile` does, which has no effect on an `nn.Sequential`: the
    compiler skips frames of torch's own classes.
    """
    call: Callable[..., Any] = module._call_impl

    def forward(*given: Any, **named: Any) -> Any:
        return call(*given, **named)

    module._compiled_call_impl = torch.compile(forward, dynamic=False)
    compile_every_shape()


def compile_every_shape() -> None:
    """Have torch.compile, if it is used, make code for a shape that does not depend on earlier
    shapes: which ones a worker sees first depends on the number of workers.
    """
    if "torch._dynamo" not in sys.modules:  # takes a second to import
        return
    from torch._dynamo import config

    config.automatic_dynamic_shapes = False
    config.recompile_limit = config.accumulated_recompile_limit = MAX_SHAPES
    config.fail_on_recompile_limit_hit = True
    if torch.are_deterministic_algorithms_enabled():
        from torch._inductor import config as of_kernels

        if hasattr(of_kernels, "deterministic"):  # from torch 2.10 on
            of_kernels.deterministic = True  # else it chooses kernels by their speed


def explain(error: BaseException) -> BaseException:
    """`error`, or a JobError instead if there were too many shapes, or if an operation has no
    deterministic kernel.
    """
    # A DataError quotes that of a loader process.
    text = str(error) if isinstance(error, RuntimeError | DataError) else ""
    if found := _NONDETERMINISTIC.search(text):
        advice = "use another operation" if found[1] else "leave CUBLAS_WORKSPACE_CONFIG as it is"
        return JobError(
            f"{found[1] or found[2]} has no deterministic kernel here, so weights would differ "
            f"from run to run; {advice}, or set numerics=fast"
        ).with_traceback(error.__traceback__)
    if type(error).__name__ != _LIMIT_HIT:
        return error
    return JobError(
        f"the model was compiled for more than {MAX_SHAPES} shapes or kinds of input; pad batches "
        "to fewer shapes, or do not compile it"
    )
