"""Restore: loads the newest checkpoint that some member of a generation has and can verify.

What the members agree on is decided in `core.checkpoints.restore_agreement`. A candidate is read
straight into the replica, so a host needs no memory for it. If no member can verify it, the next
candidate overwrites all of it; if none is left, the run ends. A member that has not verified it
receives the state of another one by a state transfer, which overwrites what it has read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import torch

from holdfast.arena.holding import Holding
from holdfast.arena.layout import Entry, Layout
from holdfast.arena.replica import Replica, weights_sha256
from holdfast.arena.state_dicts import plain_name
from holdfast.arena.tensors import rearrange, view
from holdfast.checkpoint import names, parts
from holdfast.checkpoint.manifest import Manifest
from holdfast.checkpoint.reader import load_state, read_state
from holdfast.checkpoint.recorded import LIST_TIMEOUT_S, looks
from holdfast.checkpoint.sealing.seal import Seal
from holdfast.checkpoint.store import CheckpointStore
from holdfast.collectives.barrier_tags import WorkerTag
from holdfast.collectives.group import Group
from holdfast.core.checkpoints.restore_agreement import (
    NONE,
    Agreed,
    NothingLeft,
    RestoreAgreement,
    whole_on,
)
from holdfast.core.code_version import changes as changes_of_code
from holdfast.data.loading.reader import SAMPLES
from holdfast.errors import CheckpointError, JobError
from holdfast.rundir import code_version
from holdfast.rundir.run_directory import log_event
from holdfast.wire.channel import Channel
from holdfast.wire.messages import CheckpointRejectedMessage
from holdfast.wire.worker_spec import WorkerSpec
from holdfast.worker.checks.numerics import changes, numerics_of
from holdfast.worker.process_groups.collectives import broadcast
from holdfast.worker.progress import NOT_SAVED, Evaluations, Followup, Progress
from holdfast.worker.user_state.user_values import UserValues

Nearby = Callable[[int, int], torch.Tensor]
"""Gives the replica of a rank, uint8[size_bytes], for the rank and its size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """State that the members have agreed to resume from.

    Attributes:
        step: Steps committed.
        donors: From whose replica each rank takes its state: its own if it has loaded it; empty if
            the run begins.
        progress: Progress stored with it; None if this worker receives it from its donor.
    """

    step: int
    donors: Mapping[int, int]
    progress: Progress | None


class Restorer:
    """Loads a checkpoint into one worker.

    Args:
        spec: Specification of the worker.
        channel: To its agent.
    """

    def __init__(self, spec: WorkerSpec, channel: Channel) -> None:
        self._spec = spec
        self._channel = channel
        self._store = CheckpointStore.of_run(Path(spec.run_dir), Seal.of(spec.job.checkpoint))
        self._rejections: list[str] = []
        self._unreadable: set[int] = set()
        self._away = ""

    def restore(
        self,
        replica: Replica,
        group: Group,
        checkpoints: Sequence[str],
        nearby: Nearby | None = None,
    ) -> Restored:
        """Load the newest checkpoint that some member can verify, if this one can.

        Args:
            replica: Takes the state.
            group: The members.
            checkpoints: The names of the checkpoints that this member's host has.
            nearby: Gives the replicas of members of this host, if these are in memory that they
                share. Then each of them reads a share of the checkpoint, and copies the rest.

        Raises:
            Aborted: The generation is over.
            CheckpointError: A member has checkpoints, and there is none that can be used.
            JobError: It was made on other hardware or software, which the job rejects.
        """
        agreement = RestoreAgreement(map(names.step_of, checkpoints))
        while True:
            # Each member offers its newest; all agree on the newest that anyone offers.
            decision = agreement.on_offers(group.barrier(WorkerTag.RESTORE, 0, agreement.offer))
            if isinstance(decision, NothingLeft):
                if decision.any_offered:
                    raise CheckpointError(
                        f"no checkpoint under {self._spec.run_dir} can be used: "
                        f"{'; '.join(self._rejections) or 'this host has none'}. "
                        "Start the job again in another directory"
                    )
                return Restored(step=0, donors={}, progress=Progress())
            step = decision.step
            # Workers of a host each read and verify a share, if they can copy from one another.
            readers = group.local if nearby else (group.rank,)
            manifest = None
            if decision.is_held:
                manifest = self._load(step, replica, readers.index(group.rank), len(readers))
            # Members that have verified it must have the same state, whatever disk it came from.
            digest = NONE if manifest is None else int(manifest.root[:16], 16) >> 1  # 63 bits
            digests = group.barrier(WorkerTag.RESTORE, 0, digest)
            if nearby:  # what one of them could not read, none of its host has
                digests = whole_on(_hosts(group), group.members, digests)
            outcome = agreement.on_digests(digests)
            # Some member has it whole: it is the state of the run, and the others receive it.
            if isinstance(outcome, Agreed):
                verified = [group.members[index] for index in outcome.verified]
                if decision.is_held and not set(verified) & set(group.local):
                    agreement.skipped.append(step)
                self._quarantine(agreement.skipped)
                if nearby:
                    _copy_shares(replica, group, nearby, verified)
                return self._restored(step, manifest, replica, group, verified)
            if self._away:  # no member has verified it, and it may be undamaged
                raise CheckpointError(
                    f"{self._away} for {LIST_TIMEOUT_S:.0f} s; make the storage readable, then "
                    "resume the run"
                )
            if outcome.is_different and decision.is_held:
                self._reject(step, "workers have different states for it")

    def weights_sha256(self, step: int) -> str:
        """SHA-256 of the weights in the checkpoint of `step`, which this host has; one tensor at a
        time is in memory.

        Raises:
            CheckpointError: It is damaged.
        """
        name = names.checkpoint_name(step)
        manifest = self._store.manifest(name)

        def tensor_of(entry: Entry) -> torch.Tensor:
            first = entry.offset // parts.CHUNK_BYTES
            chunks = range(first, -(-entry.end // parts.CHUNK_BYTES))
            start, end = parts.byte_range(chunks, manifest.size_bytes)
            memory = torch.empty(end - start, dtype=torch.uint8)
            state = memory.numpy().data
            for _ in read_state(
                self._store, name, manifest, lambda a, b: state[a - start : b - start], chunks
            ):
                pass
            return view(memory, replace(entry, offset=entry.offset - start))

        return weights_sha256(manifest.layout, {}, tensor_of)

    def _restored(
        self,
        step: int,
        manifest: Manifest | None,
        replica: Replica,
        group: Group,
        verified: Sequence[int],
    ) -> Restored:
        """The agreed state, for one that has verified it or not.

        Raises:
            JobError: It was made on other hardware or software, which the job rejects.
        """
        hosts = _hosts(group)
        donors = donors_among(group, verified)
        if not replica.holding.is_all and len(verified) < len(group.members):
            name = names.checkpoint_name(step)
            manifest = read_for_others(self._store, name, replica, group, verified[0])
            donors = {rank: rank for rank in group.members}
        if manifest is None:
            return Restored(step=step, donors=donors, progress=None)
        is_first = group.rank == verified[0]
        changed = self._numerics_changes(manifest, replica, is_first=is_first)
        if is_first:
            self._log_code_changes(manifest)
        # The tensors are in the replica; now they get its strides, the optimizers their state, and
        # the worker its progress.
        if replica.holding.is_all:
            rearrange(replica.flat, manifest.layout, replica.layout)
        replica.restored(frozenset(map(plain_name, manifest.uninitialized)))
        progress = _progress(manifest, changed)
        if not all(set(ranks) & set(verified) for ranks in hosts):
            progress.saved_step = NOT_SAVED  # some host does not have it
        return Restored(step=step, donors=donors, progress=progress)

    def _load(self, step: int, replica: Replica, index: int, count: int) -> Manifest | None:
        """Read and verify one of `count` shares of a checkpoint; None if it is rejected.

        What cannot be read is tried again for a while. Then a file that cannot be read, in a
        checkpoint whose manifest can, is taken for damage of the medium.
        """
        name = names.checkpoint_name(step)
        chunks = _share(replica, index, count) if count > 1 else None
        self._away = ""
        # A network file system may be away for a moment: look again before giving up.
        for is_last in looks():
            manifest = None
            try:
                manifest = self._store.manifest(name)
                self._check_weights_config(name, manifest)
                where = self._store.location(name)
                check_layout(where, manifest.layout, replica.holding.whole)
                if not replica.holding.is_all:
                    _check_strides(where, manifest.layout, replica.holding.whole)
                read_into(replica.flat, replica.holding, self._store, name, manifest, chunks)
            except CheckpointError as error:
                self._reject(step, str(error))
                return None
            except OSError as error:
                if is_last:
                    self._unreadable.add(step)
                    why = f"{self._store.location(name)} cannot be read: {error}"
                    if manifest is None:
                        self._away = why
                    else:
                        self._reject(step, why)
            else:
                return manifest
        return None

    def _check_weights_config(self, name: str, manifest: Manifest) -> None:
        """Raises: CheckpointError: A job that gives other weights has written it."""
        key = self._spec.job.changed_since(manifest.weights_config)
        if key is not None:
            raise CheckpointError(
                f"{self._store.location(name)} is of a job with {key}="
                f"{manifest.weights_config[key]}, not {self._spec.job.weights_config()[key]}: it "
                "belongs to another run"
            )

    def _numerics_changes(
        self, manifest: Manifest, replica: Replica, *, is_first: bool
    ) -> list[str]:
        """Differences of hardware and software since a checkpoint was made; the first member logs
        them.

        Raises:
            JobError: They differ, and the job does not accept that.
        """
        job = self._spec.train_job
        here = numerics_of(job.numerics, job.model, replica.flat.device)
        changed = changes(manifest.numerics, here)
        if changed and job.on_numerics_change == "fail":
            raise JobError(
                f"the checkpoint of step {manifest.step} was made on other hardware or software: "
                f"{', '.join(changed)}. The weights would not be bit-exact; resume where it was "
                "made, or set on_numerics_change=record to continue with a note in the result"
            )
        if changed and is_first:
            run_dir = Path(self._spec.run_dir)
            words = ", ".join(changed)
            log_event(run_dir, "numerics-changed", step=manifest.step, changes=words)
        return changed

    def _log_code_changes(self, manifest: Manifest) -> None:
        """Log how the user's code differs from that which has made a checkpoint: the weights may
        not be those of either.
        """
        run_dir = Path(self._spec.run_dir)
        if differ := changes_of_code(manifest.origin.code, code_version.kept(run_dir)):
            log_event(run_dir, "code-changed", step=manifest.step, **differ)

    def _reject(self, step: int, reason: str) -> None:
        name = names.checkpoint_name(step)
        self._rejections.append(f"{name}: {reason}")
        self._channel.send(
            CheckpointRejectedMessage(
                rank=self._spec.rank, directory=self._store.location(name), reason=reason
            )
        )

    def _quarantine(self, steps: Iterable[int]) -> None:
        """Make way for new checkpoints of these steps; every member of a host tries to. One that
        could not be read keeps its name: the error may pass.
        """
        for step in set(steps) - self._unreadable:
            # Another member was first, or there is no name left, or the next write fails.
            with contextlib.suppress(OSError, CheckpointError):
                self._store.quarantine(names.checkpoint_name(step))


def read_into(
    flat: torch.Tensor,
    holding: Holding,
    store: CheckpointStore,
    name: str,
    manifest: Manifest,
    chunks: range | None = None,
) -> None:
    """Read what a worker holds of a checkpoint, or some `chunks` of it, into `flat`, uint8[n]; each
    chunk is verified.

    Raises:
        CheckpointError: A file holds something else than the manifest says.
        JobError: It is encrypted, and the key is missing or another one.
        OSError: A file cannot be read.
    """
    if flat.device.type == "cpu" and holding.is_all:
        load_state(store, name, manifest, flat.numpy().data, chunks)
        return
    chunk = torch.empty(parts.CHUNK_BYTES, dtype=torch.uint8)
    staged = chunk.numpy().data
    for start, end in read_state(store, name, manifest, lambda start, end: staged[: end - start]):
        for piece in holding.between(start, end):
            at = piece.start - start
            flat[piece.own : piece.own + piece.size].copy_(chunk[at : at + piece.size])


def _share(replica: Replica, index: int, count: int) -> range:
    """The chunks that one of `count` workers of a host reads."""
    return parts.chunks_of(index, count, replica.holding.whole.size_bytes)


def _copy_shares(replica: Replica, group: Group, nearby: Nearby, verified: Collection[int]) -> None:
    """Copy what other members of this host have read; none of them changes it before all have."""
    local = group.local if group.rank in verified else ()
    size_bytes = replica.layout.size_bytes
    for index, rank in enumerate(local):
        if rank != group.rank:
            # Shares do not overlap, so each is copied from the one that has read and verified it.
            start, end = parts.byte_range(_share(replica, index, len(local)), size_bytes)
            replica.flat[start:end].copy_(nearby(rank, size_bytes)[start:end])
    group.barrier(WorkerTag.RESTORE, 0)


def _hosts(group: Group) -> Sequence[Sequence[int]]:
    """The members of each host."""
    return (group.members,) if group.network is None else group.network.hosts.ranks


def check_layout(where: str, stored: Layout, expected: Layout) -> None:
    """Raises: CheckpointError: The checkpoint at `where` is of another model or optimizer."""
    # Names of earlier versions have the parts that torch.compile adds. Other strides are no
    # difference: the tensors are rearranged.
    plain = (replace(each, name=plain_name(each.name), strides=()) for each in stored.entries)
    stored = replace(stored, entries=tuple(plain))
    expected = replace(
        expected, entries=tuple(replace(each, strides=()) for each in expected.entries)
    )
    if stored == expected:
        return
    there = set(stored.entries)
    here = set(expected.entries)
    odd = min(there ^ here, key=lambda entry: (entry.offset, entry.name), default=None)
    if odd is None:
        raise CheckpointError(
            f"{where} has the tensors of this job in another order, more than once, or in "
            f"{stored.size_bytes} bytes, not {expected.size_bytes}; resume with the job that "
            "wrote it"
        )
    whose = "the checkpoint" if odd in there else "this job"
    raise CheckpointError(
        f"{where} is of another model or optimizer: only {whose} has {odd.name} as "
        f"{odd.dtype}{list(odd.shape)}; resume with the job that wrote it"
    )


def _check_strides(where: str, stored: Layout, expected: Layout) -> None:
    """Raises: CheckpointError: A tensor is stored with other strides, so that rows are not ranges
    of its bytes.
    """
    for old, new in zip(stored.entries, expected.entries, strict=True):
        if old.strides != new.strides:
            raise CheckpointError(
                f"{where} has {new.name} in another memory format, of which a worker cannot read "
                "a part; resume once without `parallel`, or build the model in that format"
            )


def donors_among(group: Group, holders: Sequence[int]) -> dict[int, int]:
    """The donor of each rank: itself, else a member of its host, else any that has the state.

    Args:
        group: The members.
        holders: Members that have the state.
    """
    donors = {}
    for ranks in _hosts(group):
        near = [rank for rank in holders if rank in ranks] or holders
        for index, rank in enumerate(ranks):
            donors[rank] = rank if rank in holders else near[index % len(near)]
    return donors


def _progress(manifest: Manifest, changed: Sequence[str]) -> Progress:
    """The progress at a checkpoint. Samples that were computed with other numerics may differ in
    their bits and are not compared.
    """
    left_out = {SAMPLES} if changed else set()
    progress = Progress(
        step=manifest.step,
        loss=manifest.loss,
        order={key: value for key, value in manifest.order.items() if key not in left_out},
        numerics_changes=list(dict.fromkeys([*manifest.numerics_changes, *changed])),
        # Once its evaluations are complete, the checkpoint is written again, with their results.
        saved_step=NOT_SAVED if manifest.evaluates else manifest.step,
        followup=Followup(pending=manifest.evaluates),
        costs=list(manifest.costs),
        loss_scale=manifest.loss_scale,
        evaluations=Evaluations(
            metrics=manifest.metrics, best=manifest.best, previous_best=manifest.best
        ),
        user=UserValues(state=manifest.state),
    )
    progress.user.commit(manifest.user_state)
    return progress


_SIZE_BYTES: Final = 8


def read_for_others(
    store: CheckpointStore, name: str, replica: Replica, group: Group, reader: int
) -> Manifest:
    """Fill a replica, and those of the other members, with their parts of a checkpoint.

        reader    manifest ─▶ chunk ─▶ chunk ─▶ …      read and verified, then sent to all
        others    each takes its part of every chunk

    This is for workers that each hold a part of the state. A worker that holds all of it gets it
    from another worker's memory instead; see `worker.membership.state_transfer`.

    Args:
        store: Has the checkpoint, where the reader runs.
        name: Its name.
        replica: Replica of this worker.
        group: The members, who have met for collectives.
        reader: The rank that reads.

    Returns:
        The manifest.

    Raises:
        Aborted: The generation is over.
        CheckpointError: The reader finds it damaged now.
    """
    device = replica.flat.device
    reads = group.rank == reader
    text = store.manifest(name).model_dump_json().encode() if reads else b""
    size = torch.tensor(list(len(text).to_bytes(_SIZE_BYTES)), dtype=torch.uint8, device=device)
    broadcast(size, reader, group)
    sent = torch.empty(int.from_bytes(size.tolist()), dtype=torch.uint8)
    if reads:
        sent.copy_(torch.frombuffer(bytearray(text), dtype=torch.uint8))
    sent = sent.to(device)
    broadcast(sent, reader, group)
    manifest = Manifest.parse(sent.cpu().numpy().tobytes(), name)
    chunk = torch.empty(parts.CHUNK_BYTES, dtype=torch.uint8)
    memory = chunk.numpy().data
    chunks = read_state(store, name, manifest, lambda start, end: memory[: end - start])
    for number in range(parts.num_chunks(manifest.size_bytes)):
        start, end = parts.byte_range(range(number, number + 1), manifest.size_bytes)
        if reads:
            next(chunks)
        content = chunk[: end - start].to(device)
        broadcast(content, reader, group)
        for piece in replica.holding.between(start, end):
            at = piece.start - start
            replica.flat[piece.own : piece.own + piece.size].copy_(content[at : at + piece.size])
    return manifest
