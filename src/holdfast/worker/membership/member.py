"""Member: a worker as one of those who train together, through all generations of a run.

    stand still ─▶ released into a generation ─▶ meet ─▶ settle ─▶ train ─▶ … ─▶ finish
        ▲                                                            │
        └────────────────── the generation is over ──────────────────┘

Every worker begins by standing still: the first generation is formed like any other, only that
nobody has a state yet. Who has none takes that of another member, or all load a checkpoint.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from holdfast.arena.memory import Arena, Phase, Word
from holdfast.arena.replica import Replica
from holdfast.core.plan import WorkItem
from holdfast.data.loading.order import SampleOrder
from holdfast.errors import Aborted, HardwareError, JobError, UntrustedStateError
from holdfast.observe import lines
from holdfast.transport.shared_memory import SharedMemoryGroup
from holdfast.wire.messages import ResumeMessage
from holdfast.wire.worker_spec import WorkerSpec
from holdfast.worker import barriers, device
from holdfast.worker.barriers import WorkerTag, agree
from holdfast.worker.checks.numerics import check_portable, exactness
from holdfast.worker.checks.replica_checker import ReplicaChecker
from holdfast.worker.checks.self_test import check_reduction
from holdfast.worker.context import WorkerContext
from holdfast.worker.evaluation import Evaluator
from holdfast.worker.membership.agent_link import AgentLink, SelfEviction
from holdfast.worker.membership.attach import AttachedModel, ModelFactory, OptimizerFactory
from holdfast.worker.membership.state_checker import StateChecker
from holdfast.worker.membership.state_transfer import StateTransfer
from holdfast.worker.progress import Progress
from holdfast.worker.recorder import Recorder
from holdfast.worker.sections import Sections
from holdfast.worker.shard import plan_of, work_items_of
from holdfast.worker.step.committed import Committed, CommitVote, RequestFlags, UserStatesDiffer
from holdfast.worker.step.ddp import DdpModel, DdpStepper
from holdfast.worker.step.tree import Stepper
from holdfast.worker.times import Times


class Member:
    """One worker.

    Args:
        launch: Its orders.
        arena: The host's shared memory.
        seat: Where it waits between generations.
        journal: Keeps what is to outlast it.

    Attributes:
        job, device, group: What, where and with whom.
        context: What every part of this worker needs.
        progress: How far the run has come.
        units: What this worker computes in a step; in a recheck, what it computes again.
        shards: Of what, in shards.
        order: How the run walks through its data, once that is known.
        evaluator: Measures, once there is a model.
    """

    def __init__(
        self, launch: WorkerSpec, arena: Arena, seat: AgentLink, journal: Recorder
    ) -> None:
        self.job = job = launch.train_job
        rank = launch.rank
        self.device = device.choose(job.device, rank)
        check_portable(job)
        if not job.merges_shards:
            check_reduction()
        self.group = SharedMemoryGroup(arena, rank, job.timeout_s, barriers.describe)
        self.context = WorkerContext.of(job, self.group, arena)
        self._arena = arena
        self.progress = Progress()
        self.work_items: list[WorkItem] = []
        self.shards = range(0)
        self.order: SampleOrder | None = None
        self.evaluator: Evaluator | None = None
        self._agent, self._recorder = seat, journal
        self._attached: AttachedModel | None = None
        self._stepper: Stepper | DdpStepper | None = None
        self._committed: int | None = None
        self._compared: StateChecker | None = None
        self._after_commit: Callable[[], None] = lambda: None
        self._rechecks = self._loop_over = False
        self._times = Times(arena, rank)

    def attach(self, model: ModelFactory, optimizer: OptimizerFactory) -> AttachedModel:
        """Build what is to be trained.

        Raises:
            JobError: It cannot be trained.
        """
        if self._attached is not None:
            raise JobError("session.attach was called twice; a run trains one model")
        self._attached = AttachedModel(self.context, self._arena, self.device, model, optimizer)
        return self._attached

    def register(self, name: str, kept: object) -> None:
        """Make `kept` part of the run's state.

        Raises:
            JobError: There is no model, training has begun, or the name is taken.
        """
        if self._attached is None:
            raise JobError("call session.attach(model, optimizer) before session.keep")
        if self._stepper is not None:
            raise JobError(
                f"session.register({name!r}, …) was called too late; call it right after "
                "session.attach"
            )
        if name in self._attached.registered or "." in name:
            raise JobError(f"session.keep needs a name without dots for each object, not {name!r}")
        self._attached.registered[name] = kept

    def join_once(self) -> None:
        """Join the others if there is a model to train, and that has not been done."""
        if self._attached is not None and self._stepper is None:
            self.join()

    def begin_loop(self, after_commit: Callable[[], None]) -> None:
        """Note what user code keeps when its loop over shards begins.

        Args:
            after_commit: Called after every commit from now on.

        Raises:
            JobError: Some of it cannot be saved, or is not what a run that continues has left.
        """
        self._after_commit = after_commit
        self.stepper.commit_buffers()
        self._state.begin_loop(self.progress)

    def end_loop(self) -> None:
        """Note that the loop is over: what user code does to the model from now on is its own."""
        self.stepper.release_buffers()
        self.replica.release()
        self._loop_over = True
        self.context.status.enter(Phase.LEFT)

    def take_changes(self) -> None:
        """Make what user code has changed between two steps part of the run's state.

        Raises:
            JobError: Some of it cannot be saved.
        """
        self.stepper.commit_buffers()
        self._state.remember(self.progress)

    @property
    def stepper(self) -> Stepper | DdpStepper:
        """Computes the steps.

        Raises:
            JobError: There is nothing to train yet.
        """
        if self._stepper is None:
            raise JobError("call session.attach(model, optimizer) first")
        return self._stepper

    @property
    def _state(self) -> StateChecker:
        assert self._compared is not None, "the members have not met"
        return self._compared

    @property
    def replica(self) -> Replica:
        """This worker's state, once the members have met."""
        assert self._attached is not None
        assert self._attached.replica is not None
        return self._attached.replica

    def join(self) -> None:
        """Stand still until a generation begins, and come to where it goes on.

        Raises:
            Left: The run is over for this worker.
            Condemned: Its replica and those of others differ.
            JobError: The members train different things.
        """
        while True:
            if self._compared is not None and self._compared.replicas.in_doubt:
                raise SelfEviction(UntrustedStateError("may have the state of a wrong replica"))
            release = self._agent.await_resume(self._committed)
            with contextlib.suppress(Aborted):
                self._enter(release)
                return

    def missing(self) -> list[WorkItem]:
        """What of this worker's part of the step in hand nobody has computed."""
        return [unit for unit in self.work_items if not self.stepper.has(unit.leaf)]

    def to_verify(self) -> list[WorkItem]:
        """What this worker computes only to see whether it gives the same here as elsewhere."""
        stepper = self._stepper
        shards = stepper.to_verify if isinstance(stepper, Stepper) else ()
        return [WorkItem.of_shard(shard) for shard in shards]

    @property
    def rechecks(self) -> bool:
        """Whether shards are computed again, to find out what is wrong with a gradient; nothing of
        what user code does meanwhile counts.
        """
        return self._rechecks or (isinstance(self._stepper, Stepper) and self._stepper.verifies)

    def commit(self) -> bool:
        """Commit the step in hand; returns False if there are units to be computed again first.

        Raises:
            Aborted: The generation is over, and the step not committed by this worker.
            Condemned: This worker has computed wrong bits.
        """
        arena = self._arena
        asked = RequestFlags.STOP if arena.stop_requested else RequestFlags.NOTHING
        if arena.save_requested > self._recorder.begun_in(arena.generation):
            asked |= RequestFlags.SAVE
        brought = CommitVote(
            requests=asked,
            user_state=self._state.user_digest(self.progress),
            replica=self._state.replicas.digest(self.progress.step),
        )
        try:
            committed = self.stepper.commit(self.progress.step, brought)
        except UserStatesDiffer as found:
            self._state.refuse(self.progress, found.first, found.other)
        except HardwareError as error:
            raise SelfEviction(error) from None
        self.context.status.enter(Phase.DATA)
        if committed is None:
            self._begin_recheck()
            return False
        self._note(committed)
        return True

    def evaluation_noted(self, results: dict[str, float]) -> None:
        """Write down what was measured after the newest step."""
        self._recorder.evaluation(self.progress.step, results)

    def save(self, *, final: bool) -> None:
        """Write a checkpoint with the others.

        Raises:
            Aborted: The generation is over.
            CheckpointError: It is final and could not be made durable.
        """
        if self.progress.step == self.progress.saved:
            return
        self.context.status.enter(Phase.CHECKPOINT)
        part = self._recorder.write_part(self.context, self.replica, self.progress)
        try:  # after the writing, so that a bit that has flipped meanwhile is not committed
            self._state.compare_all(self.progress)
        except HardwareError as error:
            raise SelfEviction(error) from None
        self._recorder.commit_part(part, self.group, self.progress, final=final)

    def finish(self) -> None:
        """Make the last step durable, with the others.

        Raises:
            Aborted: The generation is over.
        """
        self.join_once()
        if self._attached is not None and not self._loop_over:
            self.take_changes()
        self.group.barrier(WorkerTag.END, self.progress.step)
        if self._attached is not None:
            self.save(final=True)

    def result(self) -> dict[str, Any]:
        """What the run has come to; the same from every member."""
        if self._attached is None:
            return {}
        best = self.progress.best
        return {
            "steps": self.progress.step,
            "loss": self.progress.loss,
            "metrics": self.progress.metrics,
            "best": None if best.value is None else {"step": best.step, "value": best.value},
            **self._recorder.throughput(),
            "seconds": self._times.means(),
            "exactness": exactness(self.job, self.progress.numerics_changes),
            "weights_sha256": self.replica.weights_sha256(),
        }

    def _begin_recheck(self) -> None:
        assert isinstance(self._stepper, Stepper)
        self._rechecks = True
        if not self._stepper.to_verify:
            self.work_items = [WorkItem.of_shard(shard) for shard in self._stepper.rechecked]

    def _enter(self, release: ResumeMessage) -> None:
        self._rechecks = False
        self.group.enter(release.generation, release.members)
        plan = plan_of(self.job, len(release.members))
        self.work_items = work_items_of(plan, self.group.member_index, self.job)
        self.shards = plan.shards_of(self.group.member_index)
        if self._attached is None:
            return  # a task that trains nothing
        replica, sections = self._attached.meet(self.work_items, release)
        if release.generation == 1 and self.group.member_index == 0:
            self._recorder.kernels_tested()
        if release.donors:
            self._settle(release, replica, sections)
        else:
            sections.intact_step[self.group.rank] = 0
            self._restore(release, replica)
        self._recorder.take_up(self.progress, writes=self.group.member_index == 0)
        is_first = self._stepper is None
        if is_first:
            self._compared = StateChecker(self._attached, self.group, self.progress)
            # It may write to the parameters, for DDP.
            self._stepper = self._new_stepper(replica, sections, self._compared.replicas)
            trained = self._attached.trained
            self.evaluator = Evaluator(
                self.context,
                sections.evaluation,
                modules=(trained.model, *trained.kept.values()),
                batch_size=self.job.batch,
                device=self.device,
            )
        if is_first or release.donors.get(self.group.rank) != self.group.rank:
            self._state.arrived(self.progress)
        if isinstance(self._stepper, Stepper):
            self._stepper.assign_shards(
                self.progress.step,
                plan,
                one_unit=len(self.work_items) == 1,
                keep=not self.job.merges_shards,
            )

    def _settle(self, release: ResumeMessage, replica: Replica, sections: Sections) -> None:
        """Bring this worker to the step from which all go on, with what members have."""
        assert self._attached is not None
        own = release.donors[self.group.rank] == self.group.rank
        if own and self.progress.step < release.step:
            assert isinstance(self._stepper, Stepper)
            self._note(self._stepper.complete(self.progress.step))
        handover = StateTransfer(self.group, sections, replica)
        if not own:
            self._committed = None  # until it has all of the other's state
            self._recorder.take_up(self.progress, writes=False)
        self.progress = handover.transfer(release, self.progress)
        self._committed = self.progress.step
        if not own:
            self._restore_user_state()
            if isinstance(self._stepper, Stepper):
                self._stepper.restart()

    def _restore_user_state(self) -> None:
        assert self._attached is not None
        if self.progress.user_state:  # not before training has begun
            self._attached.user_state.restore(self.progress.user_state)

    def _restore(self, release: ResumeMessage, replica: Replica) -> None:
        """Load the newest checkpoint that all can verify, or begin anew."""
        restored = self._recorder.restore(replica, self.group, release.restore)
        self.progress = self.progress.replaced_by(restored)
        self._restore_user_state()
        agree(
            self.group,
            WorkerTag.ATTACH,
            self.progress.step,
            replica.digest(),
            "different weights; the model's factory must draw from torch's seeded generator only",
        )
        self._committed = self.progress.step
        if isinstance(self._stepper, Stepper):
            self._stepper.restart()

    def _new_stepper(
        self, replica: Replica, sections: Sections, comparison: ReplicaChecker
    ) -> Stepper | DdpStepper:
        assert self._attached is not None
        parts = (sections, comparison, self.context)
        if isinstance(self._attached.callable, DdpModel):
            return DdpStepper(replica, self._attached.callable, *parts)
        return Stepper(replica, *parts)

    def _note(self, committed: Committed) -> None:
        """Write down a committed step."""
        assert self._attached is not None
        assert self.order is not None
        samples = self.order.batch_size_of(committed.step)
        record = {
            "step": committed.step + 1,
            "epoch": self.order.epoch_of(committed.step),
            "loss": lines.number(committed.loss),
            "norm": lines.number(committed.norm),
            "lr": float(self._attached.optimizer.param_groups[0]["lr"]),
            "samples": samples,
            "logged": {name: lines.number(value) for name, value in committed.logged.items()},
            **({"skipped": True} if committed.skipped else {}),
        }
        self.progress.committed(
            lines.number(committed.loss),
            record,
            save=RequestFlags.SAVE in committed.requests,
            stop=RequestFlags.STOP in committed.requests,
        )
        self._state.call(self._after_commit, self.progress)
        self.take_changes()
        self._state.settle(self.progress)
        self._committed = self.progress.step
        self.context.status[Word.SAMPLES] += samples
        self._recorder.step(record, self._times.since_last())
