"""Environment: which variables of this shell workers would not get."""

from __future__ import annotations

import os
from collections.abc import Mapping

from holdfast.doctor.finding import Finding, advice, ok
from holdfast.launch.environment import left_out


def variables(env: Mapping[str, str]) -> Finding:
    """Check that the job sets the variables of NCCL and gloo that this shell has.

    Args:
        env: Variables that the job sets.
    """
    unset = left_out(os.environ, env)
    if unset:
        shown = " ".join(f"env.{name}={os.environ[name]}" for name in unset)
        return advice(
            "environment",
            f"{', '.join(unset)} of this shell do not reach the workers",
            f"set them in the job, so that all hosts have the same: {shown}",
        )
    return ok("environment", ", ".join(env) or "no variables in the job")
