"""Drill: runs a job with each fault, and compares its weights with those of a fault-free run.

    reference  ──────────────────────────────────▶ weights
    trial      ─────✂ kill ──────────────────────▶ weights   the same?
    trial      ─────────────✂ stop ──────────────▶ weights   the same?
    trial      ──────── 3 workers, not 2 ────────▶ weights   the same?

A trial passes if its faults were injected and its weights equal those of the reference run, bit for
bit. Otherwise the reference run is repeated: if it differs too, the job is not deterministic.
"""

from __future__ import annotations

import itertools
import random
import shutil
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal, get_args

from holdfast.api.attended import Attendance, Sidecar
from holdfast.api.result import Result
from holdfast.api.train import run_job
from holdfast.errors import HoldfastError, Interrupted, JobError
from holdfast.faults.fault_injector import FaultInjector
from holdfast.faults.plan import IN_GRADIENTS, WITHOUT_RANK, Fault, FaultPlan, Kind
from holdfast.job import load
from holdfast.job.train_job import TrainJob
from holdfast.launch.fork_client import ForkServer
from holdfast.rundir import json_lines
from holdfast.rundir.run_directory import EVENTS, METRICS
from holdfast.runs.controls import Controls, stopped_by_signals
from holdfast.runs.run import LaunchOptions

FailurePolicy = Literal["replace", "shrink", "restart"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
POLICIES: Final[tuple[FailurePolicy, ...]] = get_args(FailurePolicy)

CHECKPOINTS: Final = 8
"""Checkpoints that a trial writes, so that there is one to restart from at any step."""
OTHER_WEIGHTS: Final = "other weights than the reference run"


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """A number of workers, or a plan, other than the job's.

    Attributes:
        workers, shards_per_worker: The job's keys.
    """

    workers: int
    shards_per_worker: tuple[int, ...] | None = None

    def __str__(self) -> str:
        counted = "1 worker" if self.workers == 1 else f"{self.workers} workers"
        return (
            counted
            if self.shards_per_worker is None
            else f"{counted}, shards per worker {list(self.shards_per_worker)}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A run with a fault, or in another world.

    Attributes:
        kind, policy: The fault, and the failure policy; None in another world.
        world: The other world, or None.
        problem: Why it failed; empty if its weights are the same.
        seconds: From the first generation to the last step.
        goodput: Useful samples per second, as a share of the reference run's.
        run_dir: The run's directory; that of a trial that passed is removed.
    """

    kind: Kind | None = None
    policy: FailurePolicy | None = None
    world: World | None = None
    problem: str
    seconds: float | None
    goodput: float | None
    run_dir: Path

    @property
    def name(self) -> str:
        """The fault and the policy, or the world, in words."""
        return f"{self.kind}, {self.policy}" if self.world is None else str(self.world)


@dataclass(slots=True, kw_only=True)
class DrillReport:
    """The results of a drill.

    Attributes:
        reference_run: The fault-free run.
        seconds: Its duration, as in `Trial`.
        trials: Trials that have ended, in their order.
        deterministic: True if the reference run, if it was repeated, had the same weights; None if
            it was not.
        stopped: True if a signal ended the drill early.
    """

    reference_run: Result
    seconds: float | None
    trials: list[Trial] = field(default_factory=list)
    deterministic: bool | None = None
    stopped: bool = False

    @property
    def passed(self) -> bool:
        """True if every trial that has ended passed."""
        return not any(trial.problem for trial in self.trials)


class Drill:
    """Tries one job.

    Args:
        job: Tried job. A trial writes more checkpoints, and recomputes what is not finite if
            that is the fault; neither affects the weights. No run sends notifications, nor
            anything to trackers.
        seed: Seed for the target rank and step of each fault.
        directory: For the runs.
        forks: A fork server for all runs.
        note: Called with each trial when it has ended.
    """

    def __init__(
        self,
        job: TrainJob,
        *,
        seed: int,
        directory: Path,
        forks: ForkServer,
        note: Callable[[Trial], None],
    ) -> None:
        self._job = job.model_copy(update={"notify": (), "trackers": ()})
        self._seed = seed
        self._directory = directory
        self._forks = forks
        self._note = note
        self._controls = Controls()  # one for all runs, so that no signal falls between them

    def run(
        self, kinds: Sequence[Kind], policies: Sequence[FailurePolicy], worlds: Sequence[World] = ()
    ) -> DrillReport:
        """Run the reference run, then a trial for each world, and for each kind and policy.

        Args:
            kinds, policies, worlds: Variants to try; see `check` and `other_worlds`.

        Raises:
            JobError: The job has too few steps.
            Interrupted: A signal ended the reference run, so there is nothing to report.
            HoldfastError: The reference run failed.
        """
        with stopped_by_signals(self._controls, "the drill"):
            return self._report([*worlds, *itertools.product(policies, kinds)])

    def _report(self, tried: Sequence[World | tuple[FailurePolicy, Kind]]) -> DrillReport:
        reference = self._run_reference("reference")
        if reference.steps < CHECKPOINTS:
            raise JobError(
                f"the job commits {reference.steps} steps; a drill needs at least {CHECKPOINTS}: "
                "give it more epochs or a smaller batch"
            )
        report = DrillReport(reference_run=reference, seconds=_seconds(reference.run_dir))
        for each in tried:
            try:
                if isinstance(each, World):
                    self._try_world(each, report)
                else:
                    self._try_fault(each[1], each[0], report)
            except Interrupted:
                report.stopped = True
            if report.stopped or report.deterministic is False:
                break
        return report

    def _run_reference(self, name: str) -> Result:
        return self._run(self._job, name, nullcontext)

    def _run(self, job: TrainJob, name: str, sidecar: Sidecar) -> Result:
        """Raises: Interrupted: A signal ended it early."""
        self._check_stopped()
        options = LaunchOptions(forks=self._forks, controls=self._controls)
        try:
            return run_job(
                job,
                options,
                run_dir=self._directory / name,
                resume=False,
                attendance=Attendance(sidecar=sidecar),
            )
        finally:
            self._check_stopped()  # however the run has ended

    def _check_stopped(self) -> None:
        if self._controls.stop:
            raise Interrupted("the drill was stopped")

    def _try_fault(self, kind: Kind, policy: FailurePolicy, report: DrillReport) -> None:
        """Add a trial with a fault to the report.

        Raises:
            Interrupted: A signal ended it early.
        """
        plan = _plan(
            kind, self._job, range(report.reference_run.steps), f"{self._seed} {kind} {policy}"
        )
        job = _trial_of(self._job, kind, policy, report.reference_run.steps)
        injector = FaultInjector(plan, job)
        run_dir = self._directory / f"{kind}-{policy}"
        trial = self._tried(
            job, run_dir, injector.running, lambda: _missed(kind, run_dir, injector), report
        )
        self._conclude(replace(trial, kind=kind, policy=policy), report)

    def _try_world(self, world: World, report: DrillReport) -> None:
        """Add a trial in another world to the report.

        Raises:
            Interrupted: A signal ended it early.
        """
        keys = {
            **self._job.model_dump(),
            "workers": world.workers,
            "shards_per_worker": world.shards_per_worker,
        }
        name = "-".join(map(str, ("workers", world.workers, *(world.shards_per_worker or ()))))
        job = load.check(keys, where=self._job.name)
        run_dir = self._directory / name
        trial = self._tried(job, run_dir, nullcontext, lambda: "", report)
        self._conclude(replace(trial, world=world), report)

    def _tried(
        self,
        job: TrainJob,
        run_dir: Path,
        sidecar: Sidecar,
        missed: Callable[[], str],
        report: DrillReport,
    ) -> Trial:
        """Run a trial; `missed` says why it proves nothing, if it does not."""
        seconds = None
        try:
            result = self._run(job, run_dir.name, sidecar)
        except Interrupted:
            raise
        except HoldfastError as error:
            problem = f"the run failed: {error}"
        else:
            seconds = _seconds(run_dir)
            problem = missed()
            if not problem and result.weights_sha256 != report.reference_run.weights_sha256:
                problem = OTHER_WEIGHTS
                if report.deterministic is None:
                    problem = self._repeat_reference(report)
        goodput = report.seconds / seconds if seconds and report.seconds else None
        return Trial(problem=problem, seconds=seconds, goodput=goodput, run_dir=run_dir)

    def _conclude(self, trial: Trial, report: DrillReport) -> None:
        report.trials.append(trial)
        self._note(trial)
        if not trial.problem:
            shutil.rmtree(trial.run_dir)

    def _repeat_reference(self, report: DrillReport) -> str:
        """Repeat the reference run, and note whether it has the same weights again.

        Returns:
            The problem of the trial that had other weights.

        Raises:
            Interrupted: A signal ended it early.
        """
        try:
            again = self._run_reference("reference-repeated")
        except Interrupted:
            raise
        except HoldfastError as error:
            return f"{OTHER_WEIGHTS}, which failed when it was repeated: {error}"
        report.deterministic = again.weights_sha256 == report.reference_run.weights_sha256
        return OTHER_WEIGHTS


def _missed(kind: Kind, run_dir: Path, injector: FaultInjector) -> str:
    """Why a run with a fault proves nothing, if it does not."""
    for missed in injector.missed:
        return f"{missed.fault} was not injected: {missed.reason}"
    noticed = ("checkpoint-rejected", "checkpoint-corrupt")
    if kind == "corrupt-checkpoint" and not any(_events(run_dir, name) for name in noticed):
        return "the corrupted checkpoint was not needed, so nothing was proven"
    return ""


def other_worlds(job: TrainJob, seed: int) -> list[World]:
    """One worker fewer and one more than `job` has, as its shards allow, and an uneven plan.

    Args:
        job: Has shards that are computed one by one.
        seed: Draws the uneven plan.

    Raises:
        JobError: The number of workers affects the weights, or the job has a single shard.
    """
    if job.merges_shards:
        raise JobError(
            f"--vary-workers would change the weights with sync={job.sync} and "
            f"numerics={job.numerics}: a worker's shards are one batch there"
        )
    sizes = [size for size in (job.workers - 1, job.workers + 1) if 1 <= size <= job.shards]
    if job.shards == 1:
        raise JobError("--vary-workers needs at least two shards, for two workers")
    uneven = [count for count in range(1, job.shards) if abs(2 * count - job.shards) > 1]
    plans = []
    if uneven:  # with two or three shards, every plan for two workers is as even as possible
        first = random.Random(f"{seed} worlds").choice(uneven)
        plans = [World(workers=2, shards_per_worker=(first, job.shards - first))]
    return [*(World(workers=size) for size in sizes), *plans]


def fitting(job: TrainJob) -> tuple[list[Kind], list[FailurePolicy]]:
    """The kinds of faults and the policies that `job` can be tried with.

    If a worker's shards are one batch, the number of workers affects the weights: so the world must
    not shrink, and no other worker can recompute a shard. If steps are skipped whose gradient is
    not finite, steps with a fault in the gradient would be skipped.
    """
    has_copies = job.workers > 1 and not job.parallel.is_cut
    unfit: set[Kind] = set() if has_copies else {"corrupt-replica"}  # nothing to compare with
    if job.has_process_groups or job.merges_shards or job.non_finite == "skip":
        unfit.update(IN_GRADIENTS)
    kinds = [kind for kind in KINDS if kind not in unfit]
    if job.has_process_groups:
        return kinds, ["restart"]
    return kinds, ["replace", "restart"] if job.merges_shards else list(POLICIES)


def check(job: TrainJob, kinds: Sequence[Kind], policies: Sequence[FailurePolicy]) -> None:
    """Raises: JobError: `job` would not give the same weights with all of these."""
    if job.merges_shards and job.balance != "even":
        raise JobError(
            f"balance={job.balance} would change the weights with sync={job.sync} and "
            f"numerics={job.numerics}; set balance=even"
        )
    fit, ways = fitting(job)
    _check_all(kinds, fit, job)
    _check_all(policies, ways, job)


def _check_all(asked: Sequence[str], possible: Sequence[str], job: TrainJob) -> None:
    odd = [word for word in asked if word not in possible]
    if "corrupt-replica" in odd and job.workers == 1:
        raise JobError("corrupt-replica needs two workers or more, to compare their replicas")
    if odd:
        cut = f"{job.parallel.words}, " if job.parallel.is_cut else ""
        raise JobError(
            f"{odd[0]} would change the weights with {cut}sync={job.sync}, "
            f"numerics={job.numerics} and non_finite={job.non_finite}; try {', '.join(possible)}"
        )


def _trial_of(job: TrainJob, kind: Kind, policy: FailurePolicy, steps: int) -> TrainJob:
    keep = max(2, job.checkpoint.keep)
    saving = {**job.checkpoint.model_dump(), "every_steps": _every(steps), "keep": keep}
    keys = {**job.model_dump(), "on_failure": policy, "checkpoint": saving}
    if kind in IN_GRADIENTS:
        keys["non_finite"] = "recompute"
    return load.check(keys, where=job.name)


def _plan(kind: Kind, job: TrainJob, steps: range, seed: str) -> FaultPlan:
    """A fault in the middle half of the run, with a random target rank.

    A corrupt checkpoint matters only if it is needed: so the agent is killed at the same step, and
    with it all workers that have the state. By then there is an older checkpoint, too.
    """
    chance = random.Random(seed)
    step = chance.choice(steps[len(steps) // 4 : len(steps) * 3 // 4] or steps)
    if kind == "corrupt-checkpoint":
        step = chance.randrange(2, CHECKPOINTS - 1) * _every(len(steps)) + 1
    rank = None if kind in WITHOUT_RANK else chance.randrange(job.workers)
    faults = [Fault(kind=kind, rank=rank, step=step)]
    if kind == "corrupt-checkpoint":
        faults.append(Fault(kind="agent", step=step))
    return FaultPlan(faults=tuple(faults))


def _every(steps: int) -> int:
    return max(1, steps // CHECKPOINTS)


def _events(run_dir: Path, name: str) -> list[dict[str, Any]]:
    return [each for each in json_lines.read(run_dir / EVENTS) if each["event"] == name]


def _seconds(run_dir: Path) -> float | None:
    """Seconds from a run's first generation to its last step, if both were logged."""
    began = _events(run_dir, "generation-started")
    steps = [line for line in json_lines.last(run_dir / METRICS) if "time_unix_s" in line]
    return float(steps[-1]["time_unix_s"] - began[0]["time_unix_s"]) if began and steps else None
