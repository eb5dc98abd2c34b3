"""Shell: what a command was started with, handed past the fork server to the scripts that it runs.

The fork server needs an environment and a module path of its own. What it was given in place of the
user's goes with it in one variable.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

VARIABLE: Final = "HOLDFAST_SHELL"


def remembered(names: Iterable[str]) -> dict[str, str]:
    """The variable that holds what this process, a command, was started with.

    Args:
        names: Of variables that the fork server gets with other values.
    """
    environment = {name: os.environ.get(name) for name in names}
    environment["GRPC_VERBOSITY"] = _started_with().get("GRPC_VERBOSITY")  # this package sets it
    path = sys.path[0 if sys.flags.safe_path else 1 :]  # before that comes where the command lies
    return {VARIABLE: json.dumps({"environment": environment, "path": path})}


def restore() -> None:
    """Give this process, a fork of the fork server, what the command was started with."""
    inherited = _started_with()  # without what imports have added
    shell = json.loads(inherited.pop(VARIABLE))
    given = {name: value for name, value in shell["environment"].items() if value is not None}
    os.environ.clear()
    os.environ.update({n: v for n, v in inherited.items() if n not in shell["environment"]} | given)
    sys.path[:] = shell["path"]


def _started_with() -> dict[str, str]:
    """The environment with which this process, or the one that it is a fork of, was started; but
    for GLIBC_TUNABLES, which glibc has cut into pieces.
    """
    words = map(os.fsdecode, Path("/proc/self/environ").read_bytes().split(b"\0"))
    return dict(
        word.split("=", 1) for word in words if "=" in word and not word.startswith("glibc.")
    )
