"""From the job's keys to what the coordinator's machine goes by."""

from __future__ import annotations

import math
from typing import Final

from holdfast.core.policy import RecoveryPolicy
from holdfast.job.spec import Job

HEARTBEAT_TIMEOUT_S: Final = 30.0
"""How long an agent may say nothing: on one host only one that hangs does."""
RECONNECT_TIMEOUT_S: Final = 10.0
"""How long one may be without a stream: whoever runs it says at once that it is lost, if it is."""
REGROW_DELAY_S: Final = 5.0
"""How long a world that has shrunk goes on before lost workers are replaced."""
MAX_WINDOW_S: Final = 3600.0
"""To how much the window of a script's restarts is widened at most."""
REPEAT_WINDOW_S: Final = 30.0
"""How soon a script must fail again for it to be the same failure: its steps are not known."""


def policy_of(job: Job) -> RecoveryPolicy:
    """What the job wants to happen when something is lost."""
    stops, anew = job.on_failure == "stop", job.restarts_all
    shrinks = job.on_failure == "shrink" and not anew
    window_s = job.restarts.window_s
    if not job.records_progress:  # every hang takes long, and the budget must outlast it
        hangs_s = 2 * job.hang_timeout_s * (job.restarts.limit + 1)
        window_s = max(window_s, min(hangs_s, MAX_WINDOW_S))
    return RecoveryPolicy(
        world_size=job.workers,
        min_workers=1 if shrinks else job.workers,
        regrow_delay_s=REGROW_DELAY_S if shrinks else 0.0,
        heartbeat_timeout_s=HEARTBEAT_TIMEOUT_S,
        reconnect_s=RECONNECT_TIMEOUT_S,
        max_failures=0 if stops else job.restarts.limit,
        window_s=window_s,
        repeat_window_s=math.inf if job.records_progress else REPEAT_WINDOW_S,
        restart_all=anew,
        checkpoint_s=job.checkpoint.every_s,
    )
