"""Recovery policy: how a run reacts to failures of workers, hosts and the coordinator."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryPolicy:
    """How a run reacts to failures.

    Attributes:
        world_size: Workers of a full world.
        min_workers: The fewest workers to train with; `world_size` if failed ones are replaced.
        start_workers: The fewest workers to begin the run with, if more than that.
        max_failures, window_s: How many failures are tolerated in how many seconds.
        max_repeats: How often failures may repeat without progress: a step, or a checkpoint with
            `restart_all`.
        repeat_window_s: How soon after its generation resumed a failure must come to count as a
            repeat, seconds; infinite where steps are known.
        restart_all: Whether no worker outlives its generation, so that all load a checkpoint.
        heartbeat_s: How often agents send their status, seconds.
        heartbeat_timeout_s: A silence that is never suspected, seconds.
        reconnect_s: How long an agent may be without a connection, seconds.
        last_call_s: How long to wait for more capacity before a smaller world grows, seconds.
        regrow_delay_s: How long a world trains without the workers that it lost, seconds, if
            `min_workers` are left; 0 to replace them at once.
        join_timeout_s: How long to wait with too few workers before the run fails, seconds.
        checkpoint_s: How long after a checkpoint to request the next, seconds; 0 for never, None
            for as long as costs least.
    """

    world_size: int
    min_workers: int
    start_workers: int = 0
    max_failures: int = 10
    window_s: float = 600.0
    max_repeats: int = 2
    repeat_window_s: float = math.inf
    restart_all: bool = False
    heartbeat_s: float = 1.0
    heartbeat_timeout_s: float = 3.0
    reconnect_s: float = 0.5
    last_call_s: float = 0.2
    regrow_delay_s: float = 0.0
    join_timeout_s: float = 600.0
    checkpoint_s: float | None = 0.0
