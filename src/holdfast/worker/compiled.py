"""Compiling a model so that its bits do not depend on what a worker has computed before."""

from __future__ import annotations

from typing import Final

from torch import nn

from holdfast.errors import JobError

MAX_SHAPES: Final = 512
"""For how many shapes of a batch a model is compiled. PyTorch's own limit is 8, after which shapes
run uncompiled."""
_LIMIT_HIT: Final = "FailOnRecompileLimitHit"


def compile_every_shape(module: nn.Module) -> None:
    """Compile `module` so that neither a shape's code nor whether it has any depends on the shapes
    before it: which a worker sees first depends on the number of workers.
    """
    from torch._dynamo import config  # takes a second to import

    config.recompile_limit = config.accumulated_recompile_limit = MAX_SHAPES
    config.fail_on_recompile_limit_hit = True
    module.compile(dynamic=False)


def explained(error: BaseException) -> BaseException:
    """`error`, or what to say of it if it means that there were too many shapes."""
    if type(error).__name__ != _LIMIT_HIT:
        return error
    return JobError(
        f"the model was compiled for more than {MAX_SHAPES} shapes or kinds of input; pad batches "
        "to fewer shapes, or set compile=false"
    )
