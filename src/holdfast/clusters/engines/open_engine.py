"""Opens the engine that `--on ENGINE[:WHERE]` names."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

from holdfast.clusters.engines.engine import Engine
from holdfast.clusters.engines.kubernetes.engine import KubernetesEngine
from holdfast.clusters.engines.slurm import SlurmEngine
from holdfast.clusters.engines.ssh import SshEngine
from holdfast.errors import EngineError, JobError


def _ray(where: str) -> Engine:
    try:
        from holdfast.clusters.engines.ray.engine import RayEngine  # imports ray
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise EngineError("--on ray needs Ray: pip install 'holdfast[ray]'") from None
    return RayEngine(where)


def _ssh(where: str) -> Engine:
    if not where:
        raise JobError("--on ssh needs the file that names the hosts: --on ssh:FILE")
    return SshEngine(where)


def _slurm(where: str) -> Engine:
    if where:
        raise JobError(f"--on slurm takes no {where!r}: it uses the job that it runs in")
    return SlurmEngine(os.environ)


_ENGINES: Final[dict[str, Callable[[str], Engine]]] = {
    "ray": _ray,
    "ssh": _ssh,
    "slurm": _slurm,
    "kubernetes": KubernetesEngine,
}


def open_engine(on: str) -> Engine:
    """Connect to what an engine places agents with.

    Args:
        on: The engine's name; after a colon, where its cluster is.

    Raises:
        JobError: There is no such engine.
        EngineError: It cannot be used here.
    """
    name, _, where = on.partition(":")
    if name not in _ENGINES:
        raise JobError(f"no engine {name!r}; --on takes {', '.join(_ENGINES)}")
    return _ENGINES[name](where)
