"""Worker state: what all members must have alike between two steps, and how that is ensured.

    replica        tensors: parameters, buffers, optimizer state
    user values    what user code keeps apart from tensors: session.state, options of groups, …

User code changes either between two steps only, in `session.on_commit`; `commit` makes that part of
the state. A change within the loop over shards is refused on every worker, even if it happens to be
the same on all. Replicas are compared by `worker.checks.replica_checker`, user values by digest.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, NoReturn

from holdfast.arena.memory import MAILBOX_BYTES
from holdfast.arena.replica import Replica
from holdfast.collectives.barrier_tags import WorkerTag
from holdfast.collectives.group import Group
from holdfast.collectives.network import Network
from holdfast.data.loading.reader import SAME_DATA
from holdfast.errors import JobError
from holdfast.worker.checks.replica_checker import ReplicaChecker
from holdfast.worker.membership.attach import AttachedModels
from holdfast.worker.membership.state_transfer import StateTransfer, packed
from holdfast.worker.progress import Progress
from holdfast.worker.step.buffers import Buffers
from holdfast.worker.user_state.user_state import STREAM, Stateful, difference, digest
from holdfast.worker.user_state.user_values import UserValues


class WorkerState:
    """The state of one worker.

    Args:
        attached: Models that it trains; the members have met.
        group: The members.
        progress: Progress of the run.
        buffers: The model's buffers.
        replicas: Compares the replica with those of the other members.

    Attributes:
        replicas: The argument.
    """

    def __init__(
        self,
        attached: AttachedModels,
        group: Group,
        progress: Progress,
        buffers: Buffers,
        replicas: ReplicaChecker,
    ) -> None:
        assert attached.replica is not None
        assert attached.sections is not None
        self._replica = attached.replica
        self._rows = RowGuard(attached.replica)
        self._sections = attached.sections
        self._user_state = attached.user_state
        self._group = group
        self._bases = attached.bases
        self._progress = progress
        self._buffers = buffers
        self.replicas = replicas
        self._is_released = self._has_begun = False

    def verify_bases(self) -> None:
        """Verify the frozen tensors that the models use; see `Bases.verify`.

        Raises:
            ReplicaError: They have changed.
            JobError: User code has replaced some.
        """
        self._bases.verify(self._group, self._progress.step)

    def on_state_loaded(self) -> None:
        """Note that the state comes from another worker, a checkpoint, or the model's factory."""
        self.replicas.begin(self._progress.step)
        self.replicas.compare_always(self._progress.user.overwritten)
        self._writes = self._replica.writes()
        self._buffers_digest = self._replica.digest(self._replica.buffer_range)

    def begin_loop(self) -> None:
        """Commit what user code has set before its loop over shards.

        Raises:
            JobError: User code has changed the model of a run that is to continue, or uses a
                scheduler that is not registered.
        """
        self._buffers.commit()
        self._user_state.check_all_known()
        progress = self._progress
        buffers = self._replica.digest(self._replica.buffer_range)
        self._replica.state_tensors()
        changed = (self._replica.writes(), buffers) != (self._writes, self._buffers_digest)
        if progress.step and changed:
            raise JobError(
                f"the model was modified after step {progress.step} was loaded, so the weights "
                "would depend on when a worker was started; modify it before the first use of "
                "session.state or session.shards, or in session.on_commit"
            )
        if progress.user.captured:  # of a run that continues, before what code sets at its start
            progress.user.roll_back()
            self._user_state.restore(progress.user.captured)
        self._has_begun = True
        self.commit()

    def commit(self) -> None:
        """Make what user code has changed since the newest step part of the state.

        Raises:
            JobError: Some of it cannot be saved.
        """
        if not self._is_released:
            self.take_changes()
            self.publish()

    def take_changes(self) -> None:
        """Make what user code has changed part of this worker's state; see `commit`."""
        user = self._progress.user
        # In this order: buffers and modules into the replica, then what is kept apart from tensors.
        self._buffers.commit()
        self._replica.capture_modules()
        before = user.digest
        user.commit(self._user_state.capture(self._replica.known_state))
        # Every later write, until the next commit, is a change within the loop.
        self._writes = self._replica.writes()
        self._rows.note(self._progress.step)
        size = 0 if user.digest == before else len(json.dumps(user.committed))
        most = MAILBOX_BYTES // 3  # in a pause also as they were before it
        if size > most:
            largest = max(user.committed.items(), key=lambda item: len(json.dumps(item)))[0]
            raise JobError(
                f"the user state takes {size:,} bytes, most of it in {largest}; at most {most:,} "
                "can be transferred; keep large tensors in a module given to session.register"
            )

    @property
    def outlives_worker(self) -> bool:
        """True if a new worker of this rank continues from what this one leaves."""
        has_memory = self._sections.mapped is not None or self._sections.holds(self._replica.flat)
        return has_memory and len(self._group.members) == 1

    @property
    def leaves_outcomes(self) -> bool:
        """True if what a step comes to is left with it, if the host does not know it yet."""
        return self._sections.mapped is not None

    def publish(self) -> None:
        """Note that the replica is complete. A lone worker leaves with it what another one needs to
        take its rank, except for a replica in memory that is lost with its worker.
        """
        rank = self._group.rank
        left = packed(self._progress, self._replica) if self.outlives_worker else b""
        # Zero first: a worker that dies between these lines leaves nothing that could be taken for
        # whole.
        self.begin_change()
        self._sections.intact.end_change(rank, self._progress.step, left)

    def begin_change(self) -> None:
        """Note that the replica changes: it is not intact before `publish`."""
        self._sections.intact.begin_change(self._group.rank)

    def follow(self, name: str, followed: Stateful) -> None:
        """Make an object part of the user state; see `UserState.follow`."""
        self._user_state.follow(name, followed)

    def release(self) -> None:
        """Stop tracking the model: nothing that user code changes is state from now on."""
        self._buffers.release()
        self._replica.release()
        self._is_released = True

    @contextmanager
    def user_code(self) -> Iterator[set[str]]:
        """A context for user code between two steps. At its end, the set that it gives has the
        names of the tensors that user code has overwritten: one could be wrong, and equal again
        before its slice is compared.

        Raises:
            JobError: It changes a module in a way that cannot be given to another worker.
        """
        user = self._progress.user
        overwritten = set[str]()
        # Autograd counts writes, so tensors that user code overwrites are found without comparing
        # them.
        before = self._replica.writes()
        rows = self._rows.digest()
        with self._user_state.module_changes.tracking():
            yield overwritten
        if self._rows.digest() != rows:
            raise JobError(
                "the weights were modified in session.on_commit, where each worker sees some rows "
                "of them; set parallel.zero=0, or modify them in the model's forward"
            )
        self._replica.capture_optimizers()
        overwritten.update(self._replica.writes().since(before))
        if not overwritten <= set(user.overwritten):
            user.overwritten = sorted(overwritten.union(user.overwritten))
            self.replicas.compare_always(user.overwritten)

    @contextmanager
    def read_only_view(self) -> Iterator[None]:
        """Let user code of one worker look at the committed state within the context. Buffers and
        training modes are restored.

        Raises:
            JobError: It has changed the state.
        """
        with self._buffers.committed():
            with self._user_state.modes_kept():
                yield
            if self._has_begun and not self._is_released and (what := self._changed()):
                raise JobError(
                    f"{what} was modified in a session.main_only function (step "
                    f"{self._progress.step}): the other workers do not run it, so they would have "
                    "another state; modify it in session.on_commit"
                )

    def user_digest(self) -> int:
        """A digest of what user code keeps, for a commit; 56 bits. It covers the data set, some
        samples and their order, which every worker builds for itself.

        Raises:
            JobError: It has changed since the newest commit.
        """
        if what := self._changed():
            raise JobError(
                f"{what} was modified in the session.shards loop (step {self._progress.step + 1}): "
                "a worker without a shard does not run the loop, so the weights would depend on "
                "the number of workers; modify it in session.on_commit"
            )
        return digest(self._progress.user.digest, self._progress.order)

    def _changed(self) -> str:
        """Name of what has changed since the newest commit; empty if nothing has."""
        user = self._progress.user
        before = user.committed
        state = self._replica.state_tensors()
        now = {"session.state": user.state, **self._user_state.capture(state)}
        writes = self._replica.writes()
        if self._rows.is_changed:
            return "a weight"
        # The usual case costs no search.
        if now == before and writes == self._writes:
            return ""
        written = writes.since(self._writes)
        return difference(before, now) or next(iter(written), "the optimizer's state")

    def fail_on_difference(self, first: int, other: int) -> NoReturn:
        """Fail with all members, because what user code keeps differs between two ranks.

        Raises:
            Aborted: The generation is over.
            JobError: Always.
        """
        transfer = StateTransfer(self._group, self._sections, self._replica)
        headers = transfer.exchange(self._progress, first, other)
        if headers[0]["order"] != headers[1]["order"]:
            raise JobError(_data_differ(self._group.network, first, other, headers))
        left, right = (UserValues.from_json(header["user"]).committed for header in headers)
        what = difference(left, right)
        if what.startswith(f"followed.{STREAM}"):
            raise JobError(
                f"rank {first} and rank {other} read other samples after step "
                f"{self._progress.step}: every worker must read the whole stream in the same "
                "order; seed its shuffling from `set_epoch`, and do not split it by rank"
            )
        raise JobError(
            f"rank {first} and rank {other} differ in {what}: it must be the "
            "same on every worker; modify it in session.on_commit only"
        )

    def compare_all(self) -> None:
        """Compare all of the state with the other members'.

        Raises:
            Aborted: The generation is over.
            ReplicaError: The replicas differ, and this worker leaves.
            JobError: What user code keeps differs.
        """
        group = self._group
        # Values before tensors: a difference in values explains one in tensors.
        own_digest = digest(self._progress.user.committed)
        digests = group.barrier(WorkerTag.COMPARE, self._progress.step, own_digest)
        for rank, each in zip(group.members, digests, strict=True):
            if each != digests[0]:
                self.fail_on_difference(group.members[0], rank)
        self.replicas.check_all(self._progress.step)


def _data_differ(
    network: Network | None, first: int, other: int, headers: Sequence[Mapping[str, Any]]
) -> str:
    """Difference of the data of two workers, in words."""
    left, right = (header["order"] for header in headers)
    keys = sorted(key for key in left | right if left.get(key) != right.get(key))
    named = {"samples": "some samples differ", "epoch_order": "their samplers draw other samples"}
    who = f"rank {first} and rank {other}"
    if network is not None:
        named["samples"] += ", or unlike hosts round them otherwise, as numerics=mixed allows"
        hosts = [network.hosts.addresses[rank].rpartition(":")[0] for rank in (first, other)]
        who = f"hosts {hosts[0]} and {hosts[1]} (ranks {first} and {other})"
    how = [
        named.get(key, f"{key}: {left.get(key)}, {right.get(key)}")
        for key in keys
        if key != "first_epoch"  # as the order of every epoch
    ]
    return f"{who} have different data: {'; '.join(how)}; {SAME_DATA}"


_NUM_SLICES: Final = 256
_LEAST_BYTES: Final = 1 << 20
"""Size of a slice, at least: a small replica is one slice."""


class RowGuard:
    """Detects what user code writes to the rows of a model that is divided over the workers.

    User code sees such weights as DTensors, and autograd does not count all writes to these. So
    their bytes are compared: all of them around `session.on_commit`, a slice in every step. Nothing
    is compared where the worker has whole tensors.

    Args:
        replica: Has the rows.
    """

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._is_needed = replica.holding.cuts_tensors
        self._noted: tuple[int, int, int] | None = None

    def digest(self) -> int:
        """A digest of all rows."""
        return self._replica.digest() if self._is_needed else 0

    def note(self, step: int) -> None:
        """Note the state after `step` steps."""
        if self._is_needed:
            size = self._replica.flat.numel()
            length = max(-(-size // _NUM_SLICES), _LEAST_BYTES)
            start = step % -(-size // length) * length
            end = min(start + length, size)
            self._noted = start, end, self._replica.digest((start, end))

    @property
    def is_changed(self) -> bool:
        """True if the slice differs from the state that was noted."""
        if self._noted is None:
            return False
        start, end, digest = self._noted
        return self._replica.digest((start, end)) != digest
