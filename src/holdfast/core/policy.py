"""Recovery policy: how a run reacts to failures of workers, hosts and the coordinator."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryPolicy:
    """Reactions of a run to failures.

    Attributes:
        world_size: Most workers that the run can have.
        workers: Workers of a full world until the run is scaled; 0: `world_size`.
        host_share: Most of them on one host until then; 0: as many as it can run.
        min_workers: The fewest workers to train with; None: a full world, because failed ones are
            replaced.
        start_workers: The fewest workers to begin the run with, if more than that.
        num_shards: Shards of a step, if any worker can compute each of them; else 0.
        max_failures, window_s: Failures that are tolerated, and in how many seconds.
        max_repeats: Failures that may repeat without progress: a step, or a checkpoint with
            `restart_all`.
        repeat_window_s: Time from the start of its generation within which a failure counts as a
            repeat, seconds; infinite where steps are known.
        restart_all: True if no worker outlives its generation, so that all load a checkpoint.
        allows_unlike_hosts: True if workers of a host may compute other bits than those of another.
        heartbeat_s: Interval of agents' statuses, seconds.
        heartbeat_timeout_s: A silence that is never suspected, seconds.
        reconnect_s: Time that an agent may be without a connection, seconds.
        last_call_s: Wait for more capacity before a smaller world grows, seconds.
        regrow_delay_s: Time that a world trains without the workers that it lost, seconds, if
            `min_workers` are left; 0 to replace them at once.
        join_timeout_s: Wait with too few workers before the run fails, seconds.
        checkpoint_s: Time after a checkpoint until the next is requested, seconds; 0 for never,
            None for as long as costs least.
    """

    world_size: int
    min_workers: int | None
    workers: int = 0
    host_share: int = 0
    start_workers: int = 0
    num_shards: int = 0
    max_failures: int = 10
    window_s: float = 600.0
    max_repeats: int = 2
    repeat_window_s: float = math.inf
    restart_all: bool = False
    allows_unlike_hosts: bool = False
    heartbeat_s: float = 1.0
    heartbeat_timeout_s: float = 3.0
    reconnect_s: float = 0.5
    last_call_s: float = 0.2
    regrow_delay_s: float = 0.0
    join_timeout_s: float = 600.0
    checkpoint_s: float | None = 0.0
