"""Policy: what the user wants to happen when workers, hosts or the coordinator are lost."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryPolicy:
    """What the user wants to happen.

    Attributes:
        world_size: Workers of a full world.
        min_workers: The fewest to go on with; `world_size` where lost ones are to be replaced.
        failures, window_s: How many failures are forgiven in how many seconds.
        repeats: How often the same failure may come again without getting on in between: a step, or
            a checkpoint where workers begin `anew`.
        repeat_s: How soon after its generation went on a failure must come to count as the same
            again, seconds; infinite where steps are known.
        anew: Whether no worker outlives its generation, so that all go on from a checkpoint.
        heartbeat_s: How often agents report, seconds.
        silence_s: A silence that is never suspected, seconds.
        reconnect_s: How long an agent may be without a connection, seconds.
        gather_s: How long to wait for more room before a smaller world grows, seconds.
        rest_s: How long a world that has lost workers goes on without them, seconds, if there are
            `min_workers` left; 0 to replace them at once.
        patience_s: How long to wait with too few workers before giving up, seconds.
        checkpoint_s: How long after a checkpoint to ask for the next, seconds; 0 for never.
    """

    world_size: int
    min_workers: int
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
    checkpoint_s: float = 0.0
