"""Cluster: sizes and times of a simulated cluster."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Hosts, workers and limits that are simulated.

    Attributes:
        hosts: How many, each with how many workers it can run: `capacity`.
        num_steps, step_s: Length of the run, and of a step in seconds.
        delay_s, loss, late: The network's, as in `simulation.network.Link`.
        fork_s: What a new worker takes to stand ready.
        checkpoint_every: Steps between checkpoints.
        check_every: Events between two looks at the coordinator's invariants.
        rests: True if heartbeats that would change nothing are left out; see `simulation.rest`.
    """

    hosts: int
    capacity: int
    num_steps: int
    step_s: float = 1.0
    delay_s: float = 0.002
    loss: float = 0.0
    late: float = 0.0
    fork_s: float = 0.05
    checkpoint_every: int = 50
    check_every: int = 1
    rests: bool = True
