"""Environment: what workers get of a command's environment and module path, and scripts get back.

The fork server needs its own. It carries those of the command in one variable, and its forks
restore them.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from holdfast.job.environment_names import LIBRARIES, UNUSED

VARIABLE: Final = "HOLDFAST_SHELL"


def remembered(names: Iterable[str]) -> dict[str, str]:
    """The variable that holds the environment and module path of this process, a command.

    Args:
        names: Variables to which the fork server gets other values.
    """
    environment = {name: os.environ.get(name) for name in names}
    environment["GRPC_VERBOSITY"] = _started_with().get("GRPC_VERBOSITY")  # this package sets it
    path = sys.path[0 if sys.flags.safe_path else 1 :]  # before it is the directory of the command
    return {VARIABLE: json.dumps({"environment": environment, "path": path})}


def restore() -> None:
    """Restore the environment and module path of the command in a fork of the fork server."""
    inherited = _started_with()  # without variables that imports have set
    shell = json.loads(inherited.pop(VARIABLE))
    given = {name: value for name, value in shell["environment"].items() if value is not None}
    os.environ.clear()
    os.environ.update({n: v for n, v in inherited.items() if n not in shell["environment"]} | given)
    sys.path[:] = shell["path"]


def inherited(shell: Mapping[str, str]) -> dict[str, str]:
    """Variables of a shell that workers get: not those that only the job may set."""
    return {name: value for name, value in shell.items() if not name.startswith(LIBRARIES)}


def left_out(shell: Iterable[str], env: Iterable[str]) -> list[str]:
    """The variables of a shell that workers do not get, nor others in their place.

    Args:
        shell: The names of its variables.
        env: The names of those that the job sets.
    """
    unset = {*shell} - {*env, *UNUSED}
    return sorted(name for name in unset if name.startswith(LIBRARIES))


def _started_with() -> dict[str, str]:
    """The environment at the start of this process, or of the one that it is a fork of; without
    GLIBC_TUNABLES, which glibc has overwritten.
    """
    words = map(os.fsdecode, Path("/proc/self/environ").read_bytes().split(b"\0"))
    return dict(
        word.split("=", 1) for word in words if "=" in word and not word.startswith("glibc.")
    )
