"""Drill: the faults that may befall a job, each struck into a run beside an undisturbed twin.

    twin     ──────────────────────────────────▶ weights
    trial    ─────✂ kill ──────────────────────▶ weights   the same?
    trial    ─────────────✂ stop ──────────────▶ weights   the same?

A trial passes if its faults have struck and its weights are its twin's, bit for bit. Where they are
not, the twin runs once more: if that differs too, it is the job that is not deterministic.
"""

from __future__ import annotations

import itertools
import random
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, get_args

from holdfast.agent.forks import ForkServer
from holdfast.engines.train import Result, run_job
from holdfast.errors import HoldfastError, JobError
from holdfast.faults.plan import WITHOUT_RANK, Fault, Kind, Plan
from holdfast.faults.storm import Storm
from holdfast.job import load
from holdfast.job.spec import Job
from holdfast.observe import lines

Policy = Literal["replace", "shrink", "restart"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
POLICIES: Final[tuple[Policy, ...]] = get_args(Policy)

CHECKPOINTS: Final = 8
"""How many a trial writes, so that there is one to go back to wherever it is struck."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A run that was struck.

    Attributes:
        kind, policy: With what, and what the job does about it.
        problem: Why it has failed; empty if its weights are the twin's.
        seconds: From the first generation to the last step.
        goodput: Samples a second in this time, redone work excluded, of the twin's.
        run_dir: Where its run lies; that of one that passed is removed.
    """

    kind: Kind
    policy: Policy
    problem: str
    seconds: float | None
    goodput: float | None
    run_dir: Path


@dataclass(slots=True, kw_only=True)
class Report:
    """What came of a drill.

    Attributes:
        twin: The undisturbed run.
        seconds: Its, as in `Trial`.
        trials: Those that have ended, in their order.
        deterministic: Whether the twin, where it had to run twice, was the same both times.
        stopped: Whether a signal has ended the drill early.
    """

    twin: Result
    seconds: float
    trials: list[Trial] = field(default_factory=list)
    deterministic: bool = True
    stopped: bool = False

    @property
    def passed(self) -> bool:
        """Whether every trial that has ended is the twin's equal."""
        return self.deterministic and not any(trial.problem for trial in self.trials)


class Drill:
    """One job's.

    Args:
        job: What is to be tried. A trial writes more checkpoints than it asks for, and recomputes
            what is not finite; nothing of this shows in the weights.
        seed: Draws whom a fault strikes, and in which step.
        directory: For the runs.
        forks: A fork server for all of them.
        note: Called with each trial when it has ended.
    """

    def __init__(
        self,
        job: Job,
        *,
        seed: int,
        directory: Path,
        forks: ForkServer,
        note: Callable[[Trial], None],
    ) -> None:
        self._job, self._seed, self._directory = job, seed, directory
        self._forks, self._note = forks, note

    def run(self, kinds: Sequence[Kind], policies: Sequence[Policy]) -> Report:
        """Run the twin, and then a trial for each kind of fault and policy.

        Args:
            kinds, policies: Those to try; see `check`.

        Raises:
            HoldfastError: The twin has failed.
        """
        twin = self._run_twin("twin")
        report = Report(twin=twin, seconds=_seconds(twin.run_dir), stopped=_is_stopped(twin))
        for policy, kind in itertools.product(policies, kinds):
            if report.stopped or not report.deterministic:
                break
            self._try(kind, policy, report)
        return report

    def _run_twin(self, name: str) -> Result:
        run_dir = self._directory / name
        return run_job(self._job, run_dir=run_dir, resume=False, forks=self._forks)

    def _try(self, kind: Kind, policy: Policy, report: Report) -> None:
        """Add a trial to the report, unless a signal has ended it early."""
        run_dir = self._directory / f"{kind}-{policy}"
        plan = _plan(kind, self._job, range(report.twin.steps), f"{self._seed} {kind} {policy}")
        job, seconds = _trial_of(self._job, policy, report.twin.steps), None
        storm = Storm(plan, job)
        try:
            result = run_job(
                job, run_dir=run_dir, resume=False, forks=self._forks, beside=storm.beside
            )
        except HoldfastError as error:
            problem = f"the run failed: {error}"
        else:
            if _is_stopped(result):
                report.stopped = True
                return
            seconds = _seconds(run_dir)
            problem = self._compare(result, storm, report)
        trial = Trial(
            kind=kind,
            policy=policy,
            problem=problem,
            seconds=seconds,
            goodput=report.seconds / seconds if seconds else None,
            run_dir=run_dir,
        )
        report.trials.append(trial)
        self._note(trial)
        if not problem:
            shutil.rmtree(run_dir)

    def _compare(self, result: Result, storm: Storm, report: Report) -> str:
        """Why a run that was struck is no trial that has passed, if it is not."""
        for missed in storm.missed:
            return f"{missed.fault} did not strike: {missed.reason}"
        if result.weights_sha256 == report.twin.weights_sha256:
            return ""
        again = self._run_twin("twin-again")
        report.stopped = _is_stopped(again)
        report.deterministic = report.stopped or again.weights_sha256 == report.twin.weights_sha256
        if not report.deterministic:
            return "two undisturbed runs of the job differ too"
        return "other weights than the undisturbed run"


def fitting(job: Job) -> tuple[list[Kind], list[Policy]]:
    """The kinds of faults and the policies that `job` can be tried with.

    Where a worker's shards are one batch, the number of workers shows in the weights, so that the
    world must not shrink, and no shard can be computed again by another.
    """
    if not job.merges_shards:
        return list(KINDS), list(POLICIES)
    kinds: list[Kind] = [kind for kind in KINDS if kind not in ("nan", "flip")]
    return kinds, ["restart"] if job.sync == "ddp" else ["replace", "restart"]


def check(job: Job, kinds: Sequence[Kind], policies: Sequence[Policy]) -> None:
    """Raises: JobError: `job` would not give the same weights with all of these."""
    possible: list[str] = [word for words in fitting(job) for word in words]
    odd = [word for word in (*kinds, *policies) if word not in possible]
    if odd:
        raise JobError(
            f"a job with sync={job.sync} and numerics={job.numerics} gives the same weights under "
            f"{', '.join(possible)}, which {odd[0]} is none of"
        )


def _trial_of(job: Job, policy: Policy, steps: int) -> Job:
    every = max(1, steps // CHECKPOINTS)
    saving = {**job.checkpoint.model_dump(), "every_steps": every}
    keys = {**job.model_dump(), "on_failure": policy, "checkpoint": saving}
    if not job.merges_shards:
        keys["non_finite"] = "recompute"
    return load.check(keys, where=job.name)


def _plan(kind: Kind, job: Job, steps: range, seed: str) -> Plan:
    """A fault in the middle half of the run; whom it strikes is drawn too.

    Damage shows only to those who need the checkpoint: so the agent is lost behind it, and with it
    all who have the state.
    """
    chance = random.Random(seed)
    step = chance.choice(steps[len(steps) // 4 : len(steps) * 3 // 4] or steps)
    rank = None if kind in WITHOUT_RANK else chance.randrange(job.workers)
    faults = [Fault(kind=kind, rank=rank, step=step)]
    if kind == "damage":
        faults.append(Fault(kind="agent", step=step + 1))
    return Plan(faults=tuple(faults))


def _seconds(run_dir: Path) -> float:
    """From a run's first generation to its last step."""
    events = lines.read(run_dir / "events.jsonl")
    began = next(event["time_unix_s"] for event in events if event["event"] == "generation")
    *_, last = (line for line in lines.read(run_dir / "metrics.jsonl") if "time_unix_s" in line)
    return float(last["time_unix_s"] - began)


def _is_stopped(result: Result) -> bool:
    return result.status == "stopped"
