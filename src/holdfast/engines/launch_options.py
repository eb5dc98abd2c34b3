"""Setting: what a run finds around it, none of which shows in what it comes to."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.engines.controls import Controls
from holdfast.launch.fork_client import ForkServer
from holdfast.launch.spawn import Spawned

Beside = Callable[[Path], AbstractContextManager[object]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOptions:
    """That of one run.

    Attributes:
        tee: What these workers print is shown.
        forks: See `local.run`.
        beside: Called with the run's directory once that is this run's; what it gives is entered
            before the run and left when it has ended.
        controls: How to stop it; its `watch` is set by whoever shows the run.
    """

    tee: Collection[int] = ()
    forks: ForkServer | Spawned | None = None
    sidecar: Beside = nullcontext
    controls: Controls = field(default_factory=Controls)
