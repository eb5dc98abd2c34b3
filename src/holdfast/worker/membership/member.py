"""Member: a worker as one of those that train together, through all generations of a run.

    halted ─▶ resumed in a generation ─▶ meet ─▶ get the state ─▶ train ─▶ … ─▶ finish
      ▲                                                             │
      └────────────────── the generation is over ───────────────────┘

Every worker begins halted: the first generation is formed like any other, except that no member has
a state yet. A worker without state gets that of another member, or all load a checkpoint.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.arena.memory import Arena
from holdfast.arena.replica import Replica
from holdfast.collectives.barrier_tags import WorkerTag, describe
from holdfast.collectives.connections import Listener
from holdfast.collectives.group import Group, agree
from holdfast.errors import Aborted, JobError, UntrustedStateError
from holdfast.job import load
from holdfast.job.part import MAX_SHARDS
from holdfast.job.train_keys import MEASURED
from holdfast.rundir.run_directory import BASES
from holdfast.wire.channel import Channel
from holdfast.wire.messages import ResumeMessage
from holdfast.wire.worker_spec import WorkerSpec
from holdfast.worker import devices
from holdfast.worker.agent_link import AgentLink, SelfEviction
from holdfast.worker.checkpoints.restore import Restorer
from holdfast.worker.checkpoints.saver import CheckpointSaver
from holdfast.worker.checks.numerics import check_portable
from holdfast.worker.checks.replica_checker import ReplicaChecker
from holdfast.worker.checks.self_test import check_reduction, log_sensitive_kernels
from holdfast.worker.context import WorkerContext
from holdfast.worker.evaluation import Evaluator
from holdfast.worker.membership.attach import DIFFERENT_WEIGHTS, AttachedModels
from holdfast.worker.membership.enter_group import enter_group
from holdfast.worker.membership.mapped_peers import MappedPeers
from holdfast.worker.membership.standby import StandbyMember
from holdfast.worker.membership.state_transfer import StateTransfer
from holdfast.worker.membership.unlike_members import UnlikeMembers
from holdfast.worker.membership.worker_state import WorkerState
from holdfast.worker.metrics import Metrics
from holdfast.worker.progress import Progress
from holdfast.worker.shared_sections import Sections
from holdfast.worker.step.commit import RequestFlags, StepCommitted
from holdfast.worker.step.stepper import StepContext, Stepper
from holdfast.worker.timing.balancing import Balancing
from holdfast.worker.timing.breakdown import Breakdown
from holdfast.worker.timing.stopwatch import PhaseTimes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedParts:
    """Parts of a worker that has joined a generation.

    Attributes:
        stepper: Computes the steps.
        state: State that this worker has in common with the other members.
        evaluator: Evaluates with the other members.
        saver: Saves checkpoints with the other members.
        replica: This worker's tensors.
    """

    stepper: Stepper
    state: WorkerState
    evaluator: Evaluator
    saver: CheckpointSaver
    replica: Replica


class Member:
    """One worker.

    Args:
        spec: Specification that it is started with.
        arena: The host's shared memory.
        agent: Link to its agent, at which it waits between generations.
        channel: To its agent.
        listener: Listener for workers of other hosts.

    Attributes:
        job, device, group: Its job, its device and its members.
        context: Values that every part of this worker needs.
        progress: Progress of the run.
        balancing: Plan of which member computes which shards.
        breakdown: Time of the members by cause.
        standby: Its way to standby and back, if it is much slower than the others.
        metrics: The metrics that this worker writes.
        times: Time spent by phase.
        models: Models that user code attaches; None before the first one.
        adopted: Keys of the job that user code has set, with their values.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        arena: Arena,
        agent: AgentLink,
        channel: Channel,
        listener: Listener | None = None,
    ) -> None:
        job = spec.train_job
        self.device = devices.choose_device(job.device, spec.slot)
        if job.numerics != "fast":
            devices.refuse_nondeterministic()
        if job.numerics == "portable":
            check_portable()
        if not job.merges_shards:
            check_reduction()
        self.group = Group(arena, spec.rank, job.timeout_s, describe)
        self.progress = Progress()
        self.standby = StandbyMember(agent, arena)
        self.metrics = Metrics(spec.run_dir)
        self._channel = channel
        self._agent = agent
        self._arena = arena
        self._follow(spec)
        self.times = PhaseTimes(arena, spec.rank)
        self._listener = listener
        self.models: AttachedModels | None = None
        self.adopted: list[str] = []
        self._joined: JoinedParts | None = None
        self._has_state = False
        self._peers: MappedPeers | None = None
        self._unlike: UnlikeMembers | None = None
        self._transfer: StateTransfer | None = None
        self._on_commit: Callable[[StepCommitted], None] | None = None

    def _follow(self, spec: WorkerSpec) -> None:
        """Build what depends on the job."""
        self._spec = spec
        self.job = job = spec.train_job
        self.context = WorkerContext.of(job, self.group, self._agent, self._arena)
        run_dir = Path(spec.run_dir)
        self.balancing = Balancing(self.context, self.progress, run_dir, spec.score)
        # A pipeline is idle at both ends of a step: with fewer shards for a larger part of it.
        has_stages = job.parallel.pipeline > 1
        self.breakdown = Breakdown(
            self.group,
            run_dir,
            least_shards=job.shards if has_stages else job.most_workers,
            most_shards=0 if job.merges_shards else min(job.batch, MAX_SHARDS),
            is_dynamic=job.balance in MEASURED,
        )
        self._restorer = Restorer(spec, self._channel)

    def adopt(self, keys: Mapping[str, Any]) -> None:
        """Set keys of the job to what other code decides; see `Session.adopt`.

        Raises:
            JobError: A value is wrong, or a model is attached already.
        """
        if self.models is not None:
            raise JobError("session.adopt was called too late; call it before session.attach")
        values = {**self.job.model_dump(), **keys}
        job = load.checked(values, where=self.job.name)
        self.adopted = [f"{key}={value}" for key, value in keys.items()]
        self._follow(self._spec.model_copy(update={"job": job}))

    @property
    def compares_samples(self) -> bool:
        """True if all must read the same bits; unlike hosts may round a sample otherwise."""
        is_unlike = self.models is not None and bool(self.models.unlike)
        return self.job.numerics != "mixed" and not is_unlike

    @property
    def attached(self) -> AttachedModels:
        """Models that will be trained, before training has begun.

        Raises:
            JobError: It has begun.
        """
        if self._joined is not None:
            raise JobError(
                "session.attach was called too late; call it before session.shards, and before "
                "session.state and session.step"
            )
        if self.models is None:
            run_dir = Path(self._spec.run_dir)
            self.models = AttachedModels(self.context, self._arena, self.device, run_dir / BASES)
            self._peers = MappedPeers(self.models, self.context, self._arena, run_dir)
        return self.models

    @property
    def has_joined(self) -> bool:
        """True once this worker trains: nothing can be attached or registered any more."""
        return self._joined is not None

    @property
    def joined(self) -> JoinedParts:
        """Parts that this worker has since it joined a generation.

        Raises:
            JobError: There is nothing to train yet.
        """
        if self._joined is None:
            raise JobError("call session.attach(model, optimizer) first")
        return self._joined

    @property
    def shards(self) -> range:
        """The shards of this worker, also of a data set that is evaluated."""
        return self.balancing.plan.shards_of(self.group.member_index)

    def join_once(self) -> None:
        """Join the others, if there is a model to train and this has not been done."""
        if self.models is not None and self._joined is None:
            self.join()

    def join(self) -> None:
        """Halt until this worker is a member of a generation that begins, and get the state from
        which it resumes. Outside of the loop over shards nothing measures it: it counts as fast.

        Raises:
            WorkerShutdown: The run is over for this worker.
            SelfEviction: Its replica and those of others differ.
            JobError: The members train different things.
        """
        while not self.join_unless_probed():
            self.standby.on_probed(0.0)

    def join_unless_probed(self) -> bool:
        """Join, but return False when this worker is on standby and has to measure itself."""
        while True:
            # Replicas differ somewhere: a worker whose own may be the wrong one must not give it to
            # others.
            if self._joined is not None and self._joined.state.replicas.in_doubt:
                raise SelfEviction(UntrustedStateError("may have the state of a wrong replica"))
            if self._peers is not None:
                self._peers.share()
            if self.group.network is not None:
                self.group.network.cancel()  # nothing is written to shared memory from here on
            # The agent decides from these reports who has a state, and from which step all resume.
            committed = self.progress.step if self._has_state else None
            resume = self._agent.await_resume_until(self.standby.probe_at, committed)
            if resume is None:
                return False
            # The others train on without this worker, so what it has is soon of an old step.
            if resume.standby is not None:
                self._has_state = False  # of the step that the others train
                self.metrics.set_writing(self.progress, writes=False)
                self.standby.begin(resume)
                continue
            # A member from here on. An abort while entering means another generation, and another
            # round.
            self.standby.end()
            with contextlib.suppress(Aborted):
                self._enter(resume)
                return True

    def begin_loop(self, on_commit: Callable[[StepCommitted], None]) -> None:
        """Note that the loop over shards begins.

        Args:
            on_commit: Called with a step that is completed while joining a generation.

        Raises:
            JobError: What user code has set cannot be saved, or differs from what it was when the
                run stopped.
        """
        self._on_commit = on_commit
        while True:
            try:
                self.joined.state.begin_loop()  # may have to read a stream again up to its position
                return
            except Aborted:
                self.join()

    def requests(self) -> RequestFlags:
        """Requests to the run after the current step, as far as this worker has seen."""
        stop = RequestFlags.STOP if self._arena.stop_requested else RequestFlags.NOTHING
        return stop | self.joined.saver.requests(self._arena)

    def finish(self) -> None:
        """Make the last step durable, with the others.

        Raises:
            Aborted: The generation is over.
        """
        self.join_once()
        if self._joined is not None:
            self.joined.state.commit()
        self.group.barrier(WorkerTag.END, self.progress.step)
        if self._joined is not None:
            self.joined.saver.save_durably()

    def weights_sha256(self) -> str:
        """SHA-256 of the weights after the newest step, of which there is a checkpoint."""
        replica = self.joined.replica
        if replica.holding.is_all:
            return replica.weights_sha256()
        return self._restorer.weights_sha256(self.progress.step)

    def _enter(self, resume: ResumeMessage) -> None:
        # From here on this worker can be aborted, and can meet the members at barriers.
        has_mesh = self.job.adds_vectors
        enter_group(self.group, self._agent, self._listener, resume, has_mesh=has_mesh)
        if self.models is None:
            self.balancing.begin_generation(resume.caps)
            return  # a task that trains nothing
        is_first_member = self.group.member_index == 0
        # Memory is allocated for even shares; the balance may move shards between workers later.
        even = self.job.plan(len(resume.members))
        items = self.job.work_items(even, self.group.member_index)
        replica, sections = self.models.allocate(items, resume)
        if resume.generation == 1 and is_first_member:
            log_sensitive_kernels(self.metrics.run_dir)
        # Its own donor: what this worker holds, or finds in the arena, is the state of the run.
        keeps_state = resume.donors.get(self.group.rank) == self.group.rank
        self._transfer = transfer = StateTransfer(self.group, sections, replica)
        if resume.donors and keeps_state:
            self._reach(resume.step, transfer)
        assert self._peers is not None, "models without peers"
        self._peers.open(resume.step)
        if resume.donors:
            self._share_state(resume, transfer, keeps_state=keeps_state)
        else:
            self._restore(resume, replica, sections, transfer)
        self._begin_alignment(replica, self.models.unlike)
        if not resume.donors and replica.holding.is_all:
            own_digest = replica.digest()
            agree(self.group, WorkerTag.ATTACH, self.progress.step, own_digest, DIFFERENT_WEIGHTS)
        if not resume.donors and self.progress.step:
            self.metrics.note_load()
        self._has_state = True
        self._peers.forget_left()
        is_first_here = self.group.rank == self.group.local[0]
        self.metrics.set_writing(self.progress, writes=is_first_here)
        # The first generation of this process: user code has the model, and now it has its state,
        # too.
        if self._joined is None:
            self._joined = self._parts(self.models, replica, sections)
            self.joined.state.on_state_loaded()
        elif not keeps_state:
            self._on_state_loaded()
        self.joined.state.replicas.begin_generation(tolerates=self._unlike is not None)
        # All members have the same progress now, also the same costs, so all make the same plan.
        self.balancing.begin_generation(resume.caps, sections.slot_bytes)
        self.breakdown.begin_generation(resume.caps)
        self.joined.stepper.assign(self.progress.step, self.balancing.plan)
        self.joined.stepper.resume(self.progress.step)

    def _reach(self, step: int, transfer: StateTransfer) -> None:
        """Bring this worker, which needs no other one for it, to the step from which all resume."""
        # A new process of a lone rank: the state is what its predecessor has left.
        if not self._has_state:
            self.progress.replace(transfer.load_intact_replica(step))
        # Some member has committed this step, so it is decided: apply the same reduced gradient.
        elif self.progress.step < step:
            assert self._on_commit is not None, "a step was computed before the loop"
            self._on_commit(self.joined.stepper.complete(self.progress.step))

    def _begin_alignment(self, replica: Replica, differences: tuple[str, ...]) -> None:
        """Make replicas equal where members may compute other bits, and keep them so."""
        self._unlike = None
        if differences:
            progress = self.progress
            # Unlike members may have found other changes since the checkpoint: all note all.
            payload = json.dumps(progress.numerics_changes).encode()
            noted = map(json.loads, self.group.gather(WorkerTag.ATTACH, progress.step, payload))
            changes = [*itertools.chain.from_iterable(noted), *differences]
            progress.numerics_changes = list(dict.fromkeys(changes))
            self._unlike = UnlikeMembers(
                self.group, replica, progress.step, self.metrics.run_dir, differences
            )
            self.align()

    def align(self) -> None:
        """Take the replica of another member after a step if this one's has other bits, where
        members may compute other ones.

        Raises:
            Aborted: The generation is over.
        """
        if self._unlike is None:
            return
        is_noticed = self._joined is not None and self._joined.state.replicas.differ
        donors = self._unlike.donors(self.progress.step, is_noticed=is_noticed)
        if not donors:
            return
        assert self._transfer is not None, "members without a way to share their state"
        takes = donors[self.group.rank] != self.group.rank
        self._has_state = not takes  # until it has all of the donor's
        self._transfer.align(donors, self.progress.step)
        self._has_state = True
        if takes and self._joined is not None:
            self._on_state_loaded()
        elif self._joined is not None:
            self._joined.state.replicas.begin(self.progress.step)

    def _on_state_loaded(self) -> None:
        """Note that the state of this worker, which has trained, comes from another one."""
        self.joined.stepper.restart()
        self.joined.state.on_state_loaded()

    def _share_state(
        self, resume: ResumeMessage, transfer: StateTransfer, *, keeps_state: bool
    ) -> None:
        """Give other workers the state of this one, or get theirs."""
        is_new = not self._has_state
        if not keeps_state:
            self._has_state = False  # until it has all of the donor's
            self.metrics.set_writing(self.progress, writes=False)
        transfer.transfer(resume, self.progress, self.metrics)
        if is_new or not keeps_state:
            self._restore_user_state()

    def _restore(
        self,
        resume: ResumeMessage,
        replica: Replica,
        sections: Sections,
        transfer: StateTransfer,
    ) -> None:
        """Load the newest checkpoint that some member can verify, or start from the beginning."""
        # Replicas of lost workers belong to steps that the checkpoint does not have.
        self._arena.forget_replicas()
        assert self.models is not None
        is_shared = sections.holds(replica.flat) and replica.holding.is_all
        nearby = sections.replica if is_shared else None
        restored = self._restorer.restore(replica, self.group, resume.restore, nearby)
        if restored.progress is not None:
            self.progress.replace(restored.progress)
        # Not every member could verify the checkpoint: the others get the state of one that could.
        if any(rank != donor for rank, donor in restored.donors.items()):
            agreed = {"step": restored.step, "donors": dict(restored.donors)}
            transfer.transfer(resume.model_copy(update=agreed), self.progress, self.metrics)
        if not restored.donors:  # from no checkpoint
            is_first = self.group.member_index == 0
            self.models.record_start(self.metrics.run_dir if is_first else None)
        self._restore_user_state()

    def _restore_user_state(self) -> None:
        assert self.models is not None
        if self.progress.user.captured:  # not before training has begun
            self.models.user_state.restore(self.progress.user.captured)

    def _parts(self, attached: AttachedModels, replica: Replica, sections: Sections) -> JoinedParts:
        """Build what trains, once there is a state."""
        replicas = ReplicaChecker(replica, self.group, self.progress.step)
        stepper = attached.steppers.build(
            StepContext(
                replica=replica,
                trained=attached.trained.parameters(),
                sections=sections,
                replicas=replicas,
                worker=self.context,
                run_dir=self.metrics.run_dir,
            )
        )
        state = WorkerState(attached, self.group, self.progress, stepper.buffers, replicas)
        trained = attached.trained
        evaluator = Evaluator(
            self.context,
            modules=(trained.model, *trained.kept.values()),
            num_shards=self.job.shards,
            batch_size=self.job.batch,
            device=self.device,
            compares_samples=self.compares_samples,
        )
        saver = CheckpointSaver(
            self._spec,
            self._channel,
            self.context,
            replica,
            sections.staging,
            self.progress,
            state.compare_all,
        )
        if self.group.rank == self.group.local[0]:
            saver.announce()
        return JoinedParts(
            stepper=stepper, state=state, evaluator=evaluator, saver=saver, replica=replica
        )
