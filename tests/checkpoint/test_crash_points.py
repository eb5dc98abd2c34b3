"""Whenever a host crashes, what it resumes from is a checkpoint that it published, whole."""

import errno
import random
import shutil
from contextlib import suppress

import pytest
import torch

from checkpoints import ATTEMPT, bytes_of, header_of, layout_of, restore, state_of, store_in
from conftest import sampled
from holdfast.checkpoint import names
from holdfast.checkpoint.commit import complete, prepare
from holdfast.checkpoint.part_file import write_part
from holdfast.checkpoint.retention import Retention
from holdfast.checkpoint.sealing.seal import UNSEALED
from holdfast.checkpoint.storage import Storage
from holdfast.core.checkpoints.retention import RetentionPolicy
from holdfast.core.code_version import UNKNOWN
from holdfast.core.protocol import CheckpointPart, CheckpointResult
from holdfast.errors import CheckpointError
from recorded_disk import Operation, RecordedDisk, after_crash, points

LAYOUT = layout_of(width=2)
POLICY = RetentionPolicy(last=2)


class Host:
    """Saves checkpoints below `root`, with retention.

    Attributes:
        published: How many operations there were when a checkpoint was published, its step and its
            state.
        pinned: How many operations there were when a checkpoint was pinned, and its step.
    """

    def __init__(self, root, disk):
        self.root, self.disk = root, disk
        self.published, self.pinned = [], []
        self.store = store_in(root)

    def save(self, step, seed, *, wanted=True):
        """Save a state, unless the other hosts do not have it."""
        state = state_of(LAYOUT, seed)

        def write(draft, _header, _offset):
            storage = Storage(self.root)
            return write_part(storage, draft, bytes_of(state), LAYOUT, 0, 1, UNSEALED)

        content = {"others": (), "header": header_of(LAYOUT, step).model_dump(mode="json")}
        parts = {0: CheckpointPart(number=1, step=step, count=1, content=content)}
        prepared = prepare(self.store, parts, names.attempt_in(seed, ATTEMPT), write, UNKNOWN)
        error = "" if wanted else "another host has no space"
        result = CheckpointResult(generation=1, number=1, step=step, error=error)
        outcome = complete(self.store, prepared, result)
        if not outcome.result.error:
            self.published.append((len(self.disk.operations), step, seed))

    def delete_old(self):
        with Retention(self.store, POLICY, lambda _: None) as retention:
            retention.request()

    def pin(self, step):
        with suppress(OSError, CheckpointError):  # a write that failed may have left none
            self.store.pin(names.checkpoint_name(step))
            self.pinned.append((len(self.disk.operations), step))

    def damage(self, step):
        """A page of a checkpoint goes bad."""
        path = self.root / names.checkpoint_name(step) / "part-0-of-1.safetensors"
        if not path.exists():
            return
        data = bytearray(path.read_bytes())
        data[-9] ^= 1
        with path.open("r+b") as file:
            file.write(data)
        below = str(path.relative_to(self.root))
        self.disk.operations += [Operation("data", below, content=data), Operation("sync", below)]
        self.published = [each for each in self.published if each[1] != step]

    def live(self):
        """All that happens to checkpoints, once; what fails is made up by the next one."""
        for step in (1, 2, 3):
            self.save(step, seed=step)
            self.delete_old()
        self.pin(2)
        self.damage(3)
        self.save(4, seed=4)
        self.delete_old()
        self.save(4, seed=44)  # of another life of the run
        self.save(5, seed=5, wanted=False)
        with suppress(OSError):
            self.store.remove_partial()
        for step in (6, 7):
            self.save(step, seed=step)
            self.delete_old()


def resumed(root):
    """The step and the state from which a run resumes; None if there is none."""
    store = store_in(root)
    store.remove_partial()
    for name in store.committed():
        try:
            return names.step_of(name), restore(root / name, LAYOUT)
        except CheckpointError:
            store.quarantine(name)
    return None


def check(root, published, pinned, where):
    """Check what a run resumes from: the newest published checkpoint, or a newer one that is whole,
    or the one before if the newest was being replaced. What was pinned is there.
    """
    found = resumed(root)
    kept = store_in(root).committed()
    assert {names.checkpoint_name(step) for _, step in pinned} <= {*kept}, f"{where}: pin lost"
    if found is None:
        assert not published, f"{where}: nothing is left of {published}"
        return
    step, state = found
    seeds = {4: (4, 44)}.get(step, (step,))
    assert any(torch.equal(state, state_of(LAYOUT, seed)) for seed in seeds), (
        f"{where}: wrong state"
    )
    assert step >= max((each[1] for each in published), default=0), f"{where}: too old"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    root = tmp_path_factory.mktemp("recorded") / "checkpoints"
    root.mkdir()
    disk = RecordedDisk(root)
    host = Host(root, disk)
    with disk.recording():
        host.live()
    return disk.operations, host.published, host.pinned


def test_the_record_tells_of_all_that_a_run_does(recorded):
    operations, published, pinned = recorded
    kinds = {operation.kind for operation in operations}
    assert kinds == {"mkdir", "create", "data", "sync", "sync-names", "rename", "unlink", "rmdir"}
    assert len(operations) > 100
    assert [step for _, step, _ in published] == [1, 2, 4, 4, 6, 7]
    assert [step for _, step in pinned] == [2]


@pytest.mark.parametrize("variants", sampled([1, 25], 0))
def test_a_crash_at_any_point_leaves_a_checkpoint_that_loads(recorded, tmp_path, variants):
    operations, published, pinned = recorded
    for count, chance in points(operations, variants, seed=variants):
        root = tmp_path / "crashed"
        root.mkdir()
        after_crash(operations[:count], root, chance)
        done = [each for each in published if each[0] <= count]
        held = [each for each in pinned if each[0] <= count]
        check(root, done, held, f"after {count} operations")
        shutil.rmtree(root)


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("every", sampled([7, 1], 0))
def test_an_error_at_any_point_costs_at_most_that_checkpoint(recorded, tmp_path, error, every):
    failed, numbers = 0, range(0, len(recorded[0]), every)
    for number in numbers:
        root = tmp_path / "failing"
        root.mkdir()
        disk = RecordedDisk(root, fail_at=number, error=error)
        host = Host(root, disk)
        with disk.recording():
            host.live()
        failed += sum(operation.kind == "failed" for operation in disk.operations)
        check(root, host.published, host.pinned, f"{errno.errorcode[error]} at operation {number}")
        host.save(8, seed=8)
        assert resumed(root)[0] == 8, "saving resumes"
        after = tmp_path / "crashed"
        after.mkdir()
        after_crash(disk.operations, after, random.Random(number))
        check(
            after, host.published[:-1], host.pinned, f"crash after an error at operation {number}"
        )
        shutil.rmtree(root)
        shutil.rmtree(after)
    assert failed > len(numbers) - 3, "the damage is no operation that can fail"
