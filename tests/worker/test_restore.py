"""Members with different lists of checkpoints agree on the newest one that any can verify."""

import errno
import itertools
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Event

import numpy
import pytest
import torch
from torch import nn

import checkpoints
from conftest import change_last_byte
from holdfast.arena.layout import Entry, Layout
from holdfast.arena.memory import Arena
from holdfast.arena.replica import Replica, Trained, replica_layout
from holdfast.checkpoint import names
from holdfast.checkpoint.sealing.seal import UNSEALED
from holdfast.checkpoint.storage import Storage
from holdfast.collectives.barrier_tags import describe
from holdfast.collectives.group import Group
from holdfast.core.code_version import CodeVersion
from holdfast.errors import CheckpointError, HoldfastError, JobError
from holdfast.job import load
from holdfast.rundir import code_version, json_lines
from holdfast.rundir.run_directory import EVENTS
from holdfast.wire.channel import pair
from holdfast.wire.messages import CheckpointRejectedMessage
from holdfast.wire.worker_spec import WorkerSpec
from holdfast.worker.checkpoints.restore import Restorer, check_layout
from keys import encryption_key, seal_of, signing_key

STEPS = (1, 2, 3)
JOB = load.check({"name": "digits", "data": {"name": "digits"}}, where="test")


def replica_of():
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trained = Trained(model=model, optimizers=(optimizer,))
    layout = replica_layout(trained)
    return Replica(trained, layout, torch.zeros(layout.size_bytes, dtype=torch.uint8))


def save(root, step, value, **keys):
    """A checkpoint of `step` whose tensors are `value` in every byte."""
    layout = replica_of().layout
    flat = torch.zeros(layout.size_bytes, dtype=torch.uint8)
    for entry in layout.entries:
        flat[entry.offset : entry.end] = value
    weights = JOB.weights_config()
    return checkpoints.save(root, step, flat, layout, world=1, weights_config=weights, **keys)


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    root = tmp_path_factory.mktemp("checkpoints")
    return {step: save(root, step, step) for step in STEPS}


@pytest.fixture
def disks(tmp_path, sound):
    """Gives every host a disk with the given checkpoints; negative ones are damaged there."""
    numbers = itertools.count()

    def make(*holdings):
        hosts = []
        for held in holdings:
            root = tmp_path / f"host-{next(numbers)}" / "checkpoints"
            root.mkdir(parents=True)
            for step in held:
                directory = shutil.copytree(sound[abs(step)], root / sound[abs(step)].name)
                if step < 0:
                    part = directory / "part-0-of-1.safetensors"
                    change_last_byte(part)
            hosts.append(root)
        return hosts

    return make


def restore(hosts, job=JOB, listed=None):
    """Restore one member on each host, at once; returns what it found or its error, and the state.

    Agents have found the checkpoints that are `listed`, by default those that are there.

    No state is transferred here: a member that must receive it has no progress yet.
    """
    arena = Arena.create(len(hosts))
    rejections = []

    def member(rank):
        near, far = pair()
        group = Group(Arena(arena.fd), rank, 20, describe)
        group.enter(1, tuple(range(len(hosts))))
        launch = WorkerSpec(
            job=job, rank=rank, slot=rank, run_dir=str(hosts[rank].parent), attempt="0a"
        )
        names_here = listed or checkpoints.store_in(hosts[rank]).committed()
        replica = replica_of()
        try:
            found = Restorer(launch, near).restore(replica, group, names_here)
        except HoldfastError as error:
            found = error
        near.close()
        rejections.append(
            [message for message in far.drain() if isinstance(message, CheckpointRejectedMessage)]
        )
        far.close()
        return found, replica.flat

    with ThreadPoolExecutor(len(hosts)) as pool:
        results = list(pool.map(member, range(len(hosts))))
    arena.close()
    return results, rejections


def committed(root):
    return [names.step_of(name) for name in checkpoints.store_in(root).committed()]


HOLDINGS = [
    tuple(step * sign for step, sign in zip((1, 2), signs, strict=True) if sign)
    for signs in itertools.product((0, 1, -1), repeat=2)
]


@pytest.mark.slow
def test_two_hosts_agree_on_the_newest_step_that_one_can_verify_or_both_report_none(disks):
    for pair_of in itertools.product(HOLDINGS, repeat=2):
        hosts = disks(*pair_of)
        sound = (set(pair_of[0]) | set(pair_of[1])) & set(STEPS)
        results, _ = restore(hosts)
        for (found, flat), root, held in zip(results, hosts, pair_of, strict=True):
            if sound:
                newest = max(sound)
                assert found.step == newest, pair_of
                assert (found.progress is not None) == (newest in held), pair_of
                assert all(step <= newest for step in committed(root)), pair_of
            elif any(pair_of):
                assert isinstance(found, CheckpointError), pair_of
            else:
                assert (found.step, found.donors) == (0, {})
            if sound and found.progress is not None:
                assert set(flat.tolist()) == {0, newest}, pair_of
                assert found.progress.step == newest
                assert found.donors[0] == (0 if newest in pair_of[0] else 1)


@pytest.mark.parametrize("order", [*itertools.permutations([(1, 2, -3), (1, -2), (1,)])])
def test_three_hosts_agree_in_any_order(disks, order):
    hosts = disks(*order)
    results, _ = restore(hosts)
    donor = order.index((1, 2, -3))
    for found, _ in results:
        assert (found.step, found.donors) == (2, dict.fromkeys(range(3), donor))
    assert (hosts[donor] / "step-00000003.rejected-1").is_dir()


def test_different_states_of_one_step_are_skipped(disks, tmp_path):
    hosts = disks((1, 2), (1,))
    save(hosts[1], 2, 77)
    results, rejections = restore(hosts)
    assert [found.step for found, _ in results] == [1, 1]
    assert all(found.donors == {0: 0, 1: 1} for found, _ in results)
    assert all("different states" in refused[0].reason for refused in rejections)
    for root in hosts:
        assert [path.name for path in root.glob("*.rejected-*")] == ["step-00000002.rejected-1"]


def test_members_of_one_host_quarantine_a_corrupt_checkpoint_once(disks):
    (root,) = disks((1, -2))
    results, _ = restore([root] * 4)
    assert [found.step for found, _ in results] == [1] * 4
    assert sorted(path.name for path in root.iterdir()) == [
        "step-00000001", "step-00000002.rejected-1",
    ]  # fmt: skip


def test_what_another_host_lacks_is_neither_rejected_nor_quarantined(disks):
    hosts = disks((1, 3), (1,))
    _, rejections = restore(hosts)
    assert rejections == [[], []]
    assert [committed(root) for root in hosts] == [[3, 1], [1]]


def test_the_state_is_read_straight_into_the_replica(disks, monkeypatch):
    (root,) = disks((1, -2))
    read, places = Storage.read, []

    def spy(self, name, file, start, into, *, cached=True):
        if start:
            places.append((name, numpy.frombuffer(into, numpy.uint8).ctypes.data))
        read(self, name, file, start, into, cached=cached)

    monkeypatch.setattr(Storage, "read", spy)
    (((found, flat),), _) = restore([root])
    assert found.step == 1
    assert places == [(f"step-0000000{step}", flat.data_ptr()) for step in (2, 1)]


def sealed_job(**files):
    settings = {key: str(path) for key, path in files.items()}
    return load.check({**JOB.model_dump(), "checkpoint": settings}, where="test")


def test_a_wrong_key_ends_the_run_and_quarantines_nothing(tmp_path):
    root = tmp_path / "checkpoints"
    right, wrong = (encryption_key(tmp_path / name) for name in ("right", "wrong"))
    for step in (1, 2):
        save(root, step, step, seal=seal_of(encrypt=right))
    for job, reason in [(sealed_job(encrypt=wrong), f"{wrong} holds key"), (JOB, "name its file")]:
        (((found, _),), rejections) = restore([root], job)
        assert isinstance(found, JobError)
        assert reason in str(found)
        assert rejections == [[]]
    assert committed(root) == [2, 1]
    (((found, flat),), _) = restore([root], sealed_job(encrypt=right))
    assert (found.step, set(flat.tolist())) == (2, {0, 2})


def test_what_another_key_has_signed_is_skipped_like_damage(tmp_path):
    root = tmp_path / "checkpoints"
    right, wrong = (signing_key(tmp_path / name) for name in ("right", "wrong"))
    for step, seal in enumerate((seal_of(sign=right), seal_of(sign=wrong), UNSEALED), 1):
        save(root, step, step, seal=seal)
    (((found, _),), ((unsigned, other),)) = restore([root], sealed_job(sign=right))
    assert found.step == 1
    assert "is not signed" in unsigned.reason
    assert "is signed by key" in other.reason
    assert sorted(path.name for path in root.glob("*.rejected-*")) == [
        "step-00000002.rejected-1", "step-00000003.rejected-1",
    ]  # fmt: skip


def test_unsigned_checkpoints_alone_end_the_run_and_stay(tmp_path):
    root = tmp_path / "checkpoints"
    save(root, 1, 1)
    (((found, _),), _) = restore([root], sealed_job(sign=signing_key(tmp_path / "key")))
    assert isinstance(found, CheckpointError)
    assert "is not signed, and only key" in str(found)
    assert committed(root) == [1]


@pytest.mark.parametrize("instead", [None, "step-00000002"])
def test_a_checkpoint_that_is_away_for_a_moment_is_waited_for(disks, monkeypatch, instead):
    (root,) = disks((1, 2))
    away = root / "step-00000002"
    elsewhere = away.rename(root.parent / "away")
    if instead:
        away.symlink_to(instead)  # a loop
    looked = Event()

    def bring_back():
        looked.wait(60)
        if instead:
            away.unlink()
        elsewhere.rename(away)

    class Looking(Storage):
        def size(self, name, file):
            try:
                return super().size(name, file)
            finally:
                looked.set()

    monkeypatch.setattr("holdfast.checkpoint.recorded.PAUSE_S", 0.01)
    monkeypatch.setattr("holdfast.checkpoint.store.Storage", Looking)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(bring_back)
        (((found, _),), rejections) = restore([root], listed=["step-00000002", "step-00000001"])
    assert (found.step, rejections) == (2, [[]])


@pytest.mark.parametrize("instead", [None, "step-00000002"])
def test_a_checkpoint_that_stays_away_ends_the_run_and_is_not_rejected(disks, monkeypatch, instead):
    monkeypatch.setattr("holdfast.checkpoint.recorded.LIST_TIMEOUT_S", 0.0)
    (root,) = disks((1, 2))
    (root / "step-00000002").rename(root.parent / "away")
    if instead:
        (root / "step-00000002").symlink_to(instead)
    (((found, _),), rejections) = restore([root], listed=["step-00000002", "step-00000001"])
    assert isinstance(found, CheckpointError)
    assert "step-00000002" in str(found)
    assert "resume the run" in str(found)
    assert rejections == [[]], "its record still names it when the run is resumed"


def test_a_checkpoint_that_is_away_on_one_host_is_received_from_another(disks, monkeypatch):
    monkeypatch.setattr("holdfast.checkpoint.recorded.LIST_TIMEOUT_S", 0.0)
    hosts = disks((1, 2), (1, 2))
    (hosts[0] / "step-00000002").rename(hosts[0].parent / "away")
    results, _ = restore(hosts, listed=["step-00000002", "step-00000001"])
    assert [(found.step, found.donors) for found, _ in results] == [(2, {0: 1, 1: 1})] * 2


def test_a_part_that_cannot_be_read_is_taken_for_damage_and_keeps_its_name(disks, monkeypatch):
    monkeypatch.setattr("holdfast.checkpoint.recorded.LIST_TIMEOUT_S", 0.0)
    (root,) = disks((1, 2))
    broken = root / "step-00000002" / "part-0-of-1.safetensors"

    class Broken(Storage):
        def read(self, name, file, start, into, *, cached=True):
            if self.root / name / file == broken:
                raise OSError(errno.EIO, os.strerror(errno.EIO), str(broken))
            super().read(name, file, start, into, cached=cached)

    monkeypatch.setattr("holdfast.checkpoint.store.Storage", Broken)
    (((found, _),), ((rejected,),)) = restore([root])
    assert found.step == 1
    assert "Input/output error" in rejected.reason
    assert committed(root) == [2, 1]


def test_other_code_is_reported_and_accepted(tmp_path):
    root, before, now = tmp_path / "checkpoints", *(CodeVersion(commit=each) for each in "ab")
    save(root, 1, 1, code=before)
    for kept, events in [(before, []), (now, [("code-changed", 1, "commit a", "commit b")])]:
        code_version.keep(tmp_path, kept)
        (((found, _),), _) = restore([root])
        assert found.step == 1
        logged = json_lines.read(tmp_path / EVENTS)
        assert [(e["event"], e["step"], e["before"], e["now"]) for e in logged] == events


def test_a_layout_with_names_of_a_compiled_model_is_that_of_the_model():
    entry = Entry("model.head.weight", "F32", (2,), 0)
    compiled = replace(entry, name="model._orig_mod.head._orig_mod.weight")
    check_layout("there", Layout((compiled,), 64), Layout((entry,), 64))
    other = replace(compiled, name="model._orig_mod.head.bias")
    with pytest.raises(CheckpointError, match=r"only the checkpoint has model.head.bias"):
        check_layout("there", Layout((other,), 64), Layout((entry,), 64))
