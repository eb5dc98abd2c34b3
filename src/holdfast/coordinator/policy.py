"""Recovery policy: derives the coordinator's policy from the keys of a job."""

from __future__ import annotations

import math
from typing import Final

from holdfast.core.policy import RecoveryPolicy
from holdfast.job.spec import Job

HEARTBEAT_TIMEOUT_S: Final = 30.0
"""Time that an agent may send no heartbeat. On one host only an agent that hangs sends none."""
RECONNECT_TIMEOUT_S: Final = 10.0
"""Time that an agent may be without a stream. Its engine reports a death at once."""
HOST_TIMEOUT_S: Final = 2.0
HOST_RECONNECT_S: Final = 1.0
"""Heartbeat timeout of a run on several hosts, any of which may be lost."""
REGROW_DELAY_S: Final = 5.0
"""Time that a world that has shrunk trains before lost workers are replaced."""
MAX_WINDOW_S: Final = 3600.0
"""Upper limit for the restart window of a script, which is widened for hangs."""
REPEAT_WINDOW_S: Final = 30.0
"""A script that fails again within this time has the same failure: its steps are not known."""


def policy_of(job: Job) -> RecoveryPolicy:
    """The recovery policy of a job."""
    stops = job.on_failure == "stop"
    restarts_all = job.restarts_all
    shrinks = job.on_failure == "shrink" and not restarts_all
    window_s = job.restarts.window_s
    if not job.records_progress:  # every hang takes long, and the budget must outlast it
        hangs_s = 2 * job.hang_timeout_s * (job.restarts.limit + 1)
        window_s = max(window_s, min(hangs_s, MAX_WINDOW_S))
    is_alone = job.most_hosts == 1
    continues = not is_alone and not job.has_process_groups  # without a host that is lost
    is_elastic = job.most_hosts > job.hosts
    # The size below which the run waits: any that is left, the size that it begins with, or None,
    # which is a full world.
    least = 1 if shrinks or continues else job.workers if is_elastic else None
    timeout_s = HEARTBEAT_TIMEOUT_S if is_alone else HOST_TIMEOUT_S
    return RecoveryPolicy(
        world_size=job.most_workers,
        min_workers=least,
        workers=min(job.wanted_workers, job.most_workers),
        host_share=job.equal_share,
        start_workers=0 if is_alone else job.workers,
        num_shards=job.movable_shards,
        regrow_delay_s=REGROW_DELAY_S if shrinks else 0.0,
        heartbeat_s=job.heartbeat.interval_s,
        heartbeat_timeout_s=job.heartbeat.timeout_s or timeout_s,
        reconnect_s=RECONNECT_TIMEOUT_S if is_alone else HOST_RECONNECT_S,
        max_failures=0 if stops else job.restarts.limit,
        window_s=window_s,
        repeat_window_s=math.inf if job.records_progress else REPEAT_WINDOW_S,
        restart_all=restarts_all,
        allows_unlike_hosts=job.allows_unlike_hosts,
        checkpoint_s=None if job.checkpoint.every == "auto" else job.checkpoint.every_s,
    )
