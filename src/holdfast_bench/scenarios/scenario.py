"""Scenario: faults at known steps, and from where the run must continue. Pure.

Each scenario runs with checkpoints every ten steps, once under each recovery:

    live      the other workers wait, a replacement takes over their state: no step is lost
    restart   all workers restart from the newest intact checkpoint
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

Recovery = Literal["live", "restart"]
POLICIES: Final[dict[Recovery, str]] = {"live": "replace", "restart": "restart"}
"""The job's `on_failure` for each recovery."""

STEPS: Final = 70
CHECKPOINT_EVERY: Final = 10
CUT_STEP: Final = 35
"""The step at which the second host of `host-lost` is cut off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Faults of a run, and what must follow.

    Attributes:
        name: Its name.
        title: What happens, in words.
        faults: What is injected; see `faults.plan`. None for a host that is cut off.
        restored: Steps of the checkpoints that the run restarts from, one for each restart.
        reported: Events that the run must report, whatever the recovery.
        hosts: How many hosts it needs.
    """

    name: str
    title: str
    faults: tuple[str, ...] = ()
    restored: tuple[int, ...] = ()
    reported: tuple[str, ...] = ()
    hosts: int = 1

    def expected(self, recovery: Recovery) -> str:
        """The required restarts, in words."""
        return described(self.restored if recovery == "restart" else ())


SCENARIOS: Final = (
    Scenario(
        name="worker-killed",
        title="rank 0 is killed after step 35",
        faults=("kill:step=35,rank=0",),
        restored=(30,),
    ),
    Scenario(
        name="two-failures",
        title="rank 1 is killed after step 25, rank 0 after step 55",
        faults=("kill:step=25,rank=1", "kill:step=55,rank=0"),
        restored=(20, 50),
    ),
    Scenario(
        name="checkpoint-damaged",
        title="a byte of checkpoint 30 changes after step 33, rank 0 is killed after step 35",
        faults=("corrupt-checkpoint:step=33", "kill:step=35,rank=0"),
        restored=(20,),
    ),
    Scenario(
        name="coordinator-killed",
        title="the coordinator is killed after step 35",
        faults=("coordinator:step=35",),
        reported=("coordinator-recovered",),
    ),
    Scenario(
        name="disk-full",
        title="the disk is full at checkpoint 30, rank 0 is killed after step 35",
        faults=("disk-full:step=25,rank=1", "kill:step=35,rank=0"),
        restored=(20,),
        reported=("checkpoint-failed",),
    ),
    Scenario(
        name="host-lost",
        title=f"the second of two hosts is cut off after step {CUT_STEP}",
        restored=(30,),
        reported=("host-lost",),
        hosts=2,
    ),
)


NAMES: Final = tuple(each.name for each in SCENARIOS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Events and result of a run.

    Attributes:
        restored: Steps of the checkpoints that it restarted from, one for each restart.
        recomputed: Committed steps that it computed again.
        events: What it reported, in its order.
        weights_sha256: Of its weights; None if it has not finished.
        recovery_s: Seconds until the next step, of all recoveries.
        problem: Why it failed; empty if it has finished.
    """

    restored: tuple[int, ...] = ()
    recomputed: int = 0
    events: tuple[str, ...] = ()
    weights_sha256: str | None = None
    recovery_s: float | None = None
    problem: str = ""


def outcome(
    events: Sequence[Mapping[str, Any]],
    recoveries: Sequence[Mapping[str, Any]],
    weights_sha256: str | None,
) -> Outcome:
    """The outcome of a run, from its files.

    Args:
        events: The lines of `events.jsonl`.
        recoveries: The lines of `recoveries.jsonl`.
        weights_sha256: Of the result.
    """
    seconds = [each["total_s"] for each in recoveries if each["total_s"] is not None]
    return Outcome(
        restored=tuple(e["checkpoint"] for e in recoveries if e["checkpoint"] is not None),
        recomputed=sum(each["recomputed_steps"] or 0 for each in recoveries),
        events=tuple(text for event in events if (text := _told(event))),
        weights_sha256=weights_sha256,
        recovery_s=round(sum(seconds), 3) if seconds else None,
    )


def judged(scenario: Scenario, recovery: Recovery, found: Outcome, weights_sha256: str) -> str:
    """Why a run failed its scenario; empty if it passed.

    Args:
        scenario, recovery: What was to happen.
        found: What happened.
        weights_sha256: Of the run without a fault.
    """
    if found.problem:
        return found.problem
    happened = described(found.restored, found.recomputed)
    if happened.split(";")[0] != scenario.expected(recovery):
        return f"{happened}, not {scenario.expected(recovery)}"
    for name in scenario.reported:
        if not any(event.startswith(name) for event in found.events):
            return f"no event {name}"
    if found.weights_sha256 != weights_sha256:
        return "other weights than the run without a fault"
    return ""


def described(restored: Sequence[int], recomputed: int = 0) -> str:
    """From where a run has continued, in words."""
    if not restored:
        return f"{recomputed} steps lost" if recomputed else "no step lost"
    text = "restart from " + " and ".join(map(str, restored))
    return f"{text}; {recomputed} steps again" if recomputed else text


_TOLD: Final = {
    "fault-injected": "fault-injected {kind}",
    "worker-exited": "worker-exited rank {rank}",
    "generation-started": "generation {number} from step {step}",
    "checkpoint-rejected": "checkpoint-rejected",
    "checkpoint-failed": "checkpoint-failed step {step}",
    "coordinator-recovered": "coordinator-recovered",
    "host-lost": "host-lost {host}",
}
"""The events of a row, and how they are told."""


def _told(event: Mapping[str, Any]) -> str:
    if event["event"] == "worker-exited" and not event["unexpected"]:
        return ""
    return _TOLD.get(event["event"], "").format_map(event)
