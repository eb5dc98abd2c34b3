"""A checkpoint is deleted only once newer ones have been read back whole."""

import errno
import json
import os
import select
import threading
import time

import pytest

from checkpoints import bytes_of, header_of, host_checkpoints, layout_of, state_of, store_in
from conftest import change_last_byte, wait_until
from holdfast.arena.layout import Field, Layout
from holdfast.checkpoint import names, parts, retention
from holdfast.checkpoint.manifest import Best, PartFile
from holdfast.checkpoint.part_file import WrittenPart, write_part
from holdfast.checkpoint.sealing.seal import UNSEALED
from holdfast.checkpoint.storage import Storage
from holdfast.checkpoint.store import MANIFEST, CheckpointStore
from holdfast.core.actions import CompleteCheckpoint, PrepareCheckpoint
from holdfast.core.events import CheckpointCompleted
from holdfast.core.protocol import CheckpointPart, CheckpointResult
from holdfast.rundir.json_lines import EventLog

LAYOUT = layout_of(width=4)


@pytest.fixture(autouse=True)
def _reads_all(monkeypatch):
    monkeypatch.setattr(retention, "REST", 0)


@pytest.fixture
def log(tmp_path):
    with EventLog(tmp_path / "events.jsonl") as events:
        yield events


@pytest.fixture
def root(tmp_path):
    path = tmp_path / "checkpoints"
    path.mkdir()
    return path


def commit(to, root, step, *, bad=False, layout=LAYOUT, seal=UNSEALED, **fields):
    """Have the agent commit a checkpoint that workers have staged; it is written badly."""

    def write(draft, _):
        state = bytes_of(state_of(layout, seed=step))
        part = write_part(Storage(root), draft, state, layout, 0, 1, seal)
        if bad:
            path = root / draft / part.file.file
            data = bytearray(path.read_bytes())
            data[-5] ^= 1
            path.write_bytes(data)
        return part

    assert not perform(to, step, staged_by(to, write, header_of(layout, step, **fields))).error


def staged_by(to, write, header, ranks=2):
    """The parts of a checkpoint that `write` writes."""
    first = {"offset": to.staged.stage(write), "header": header.model_dump(mode="json")}
    return {
        rank: CheckpointPart(
            number=1,
            step=header.step,
            count=ranks,
            content={"others": (), **({} if rank else first)},
        )
        for rank in range(ranks)
    }


def perform(to, step, written):
    """Have the agent perform a commit; returns its result."""
    to.perform(PrepareCheckpoint(1, written))
    to.perform(CompleteCheckpoint(CheckpointResult(generation=1, number=1, step=step)))
    while True:
        assert select.select([to], [], [], 60)[0]
        for event in to.results():
            if isinstance(event, CheckpointCompleted):
                return event.result


def steps(root):
    return [names.step_of(name) for name in store_in(root).committed()]


def events(tmp_path):
    return [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_the_newest_are_kept(root, log, keep):
    with host_checkpoints(root, keep, log) as checkpoints:
        for step in range(1, 6):
            commit(checkpoints, root, step)
    assert steps(root) == [5, 4, 3, 2, 1][:keep]


def test_a_bad_write_does_not_cost_the_last_good_checkpoint(root, log, tmp_path):
    with host_checkpoints(root, 1, log) as checkpoints:
        commit(checkpoints, root, 1)
        commit(checkpoints, root, 2, bad=True)
    assert steps(root) == [1]
    aside = root / "step-00000002.rejected-1"
    assert aside.is_dir()
    (damaged,) = [event for event in events(tmp_path) if event["event"] == "checkpoint-corrupt"]
    assert (damaged["step"], damaged["directory"]) == (2, str(aside))
    assert damaged["file"] == "part-0-of-1.safetensors"
    assert "chunk 0 of the state does not match its digest" in damaged["reason"]


def test_the_only_checkpoint_stays_even_if_it_is_corrupt(root, log, tmp_path):
    with host_checkpoints(root, 1, log) as checkpoints:
        commit(checkpoints, root, 1, bad=True)
        checkpoints.delete_old()
    assert steps(root) == [1]  # workers must refuse it, not begin the run again
    damaged = [event for event in events(tmp_path) if event["event"] == "checkpoint-corrupt"]
    assert [each["directory"] for each in damaged] == [str(root / "step-00000001")]
    with host_checkpoints(root, 1, log) as checkpoints:
        commit(checkpoints, root, 2)
    assert steps(root) == [2]


def test_a_corrupt_checkpoint_does_not_count_towards_keep(root, log):
    with host_checkpoints(root, 2, log) as checkpoints:
        for step in (1, 2, 3, 4):
            commit(checkpoints, root, step, bad=step in (2, 4))
    assert steps(root) == [3, 1]


def test_a_corrupt_manifest_is_detected(root, log, tmp_path):
    with host_checkpoints(root, 2, log) as checkpoints:
        commit(checkpoints, root, 1)
    (root / "step-00000001" / MANIFEST).write_bytes(b"{")
    with host_checkpoints(root, 2, log) as checkpoints:
        commit(checkpoints, root, 2)
    assert steps(root) == [2]
    assert events(tmp_path)[-1]["file"] == MANIFEST


def test_nothing_is_quarantined_before_workers_have_restored(root, log):
    with host_checkpoints(root, 1, log) as checkpoints:
        commit(checkpoints, root, 1)
    (root / "step-00000001" / MANIFEST).write_bytes(b"{")
    with host_checkpoints(root, 1, log):
        pass
    assert steps(root) == [1]


def test_a_restarted_agent_verifies_the_checkpoints_again(root, log):
    with host_checkpoints(root, 9, log) as checkpoints:
        for step in (1, 2, 3):
            commit(checkpoints, root, step)
    part = root / "step-00000003" / "part-0-of-1.safetensors"
    change_last_byte(part)
    with host_checkpoints(root, 2, log) as checkpoints:
        commit(checkpoints, root, 4)
    assert steps(root) == [4, 2]


def test_the_best_checkpoint_is_kept_too(root, log):
    with host_checkpoints(root, 1, log) as checkpoints:
        commit(checkpoints, root, 1)
        commit(checkpoints, root, 2, best=Best(value=0.5, step=2))
        commit(checkpoints, root, 3, best=Best(value=0.5, step=2))
        commit(checkpoints, root, 4, best=Best(value=0.5, step=2))
    assert steps(root) == [4, 2]


def test_a_corrupt_best_checkpoint_does_not_cost_the_previous_best(root, log):
    with host_checkpoints(root, 1, log) as checkpoints:
        commit(checkpoints, root, 1, best=Best(value=0.5, step=1))
        commit(checkpoints, root, 2, best=Best(value=0.5, step=1))
        commit(checkpoints, root, 3, best=Best(value=0.7, step=3), bad=True)
    assert steps(root) == [2, 1]


def commit_huge(to, root, step):
    """Commit a checkpoint of 64 GiB of zeros, a hole in its file, which takes long to read."""
    size = 1 << 36
    layout = Layout.pack([Field("w", "F32", (size // 4,))])
    zeros = parts.digest(memoryview(bytes(parts.CHUNK_BYTES)), parts.DigestKind.XXH3)

    def write(draft, _):
        path = root / draft / "part-0-of-1.safetensors"
        path.parent.mkdir()
        header = parts.header(layout, 0, size)
        path.write_bytes(header)
        os.truncate(path, len(header) + size)
        digests = (zeros,) * parts.num_chunks(size)
        file = PartFile(
            file=path.name, size_bytes=path.stat().st_size, first_chunk=0, digests=digests
        )
        return WrittenPart(file=file, staged_digests=digests)

    perform(to, step, staged_by(to, write, header_of(layout, step)))


def test_neither_a_commit_nor_the_end_waits_for_a_long_verification(root, log, monkeypatch):
    with host_checkpoints(root, 1, log) as checkpoints:
        commit(checkpoints, root, 1)
    monkeypatch.setattr(retention, "CLOSE_S", 0.0)
    threads = threading.active_count()
    with host_checkpoints(root, 1, log) as checkpoints:
        commit_huge(checkpoints, root, 2)
    assert threading.active_count() == threads
    assert steps(root) == [2, 1]


class FaultyStorage(Storage):
    """Raises `error` when the parts of the checkpoint `name` are read back."""

    def __init__(self, root, name, error):
        super().__init__(root)
        self.name, self.error = name, error

    def read(self, name, file, start, into, *, cached=True):
        if name == self.name and file != MANIFEST:
            raise self.error
        super().read(name, file, start, into, cached=cached)


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE])
def test_a_checkpoint_that_cannot_be_read_now_is_not_quarantined(root, log, tmp_path, number):
    storage = FaultyStorage(root, "step-00000003", OSError(number, os.strerror(number)))
    with host_checkpoints(root, 1, log, CheckpointStore(storage)) as checkpoints:
        for step in (1, 2, 3):
            commit(checkpoints, root, step)
        checkpoints.delete_old()
    assert steps(root) == [3, 2]
    (found,) = [each for each in events(tmp_path) if each["event"] == "checkpoint-unreadable"]
    assert (found["step"], found["file"]) == (3, "part-0-of-1.safetensors")
    assert os.strerror(number) in found["reason"]
    storage.name = ""
    with host_checkpoints(root, 1, log, CheckpointStore(storage)) as checkpoints:
        checkpoints.delete_old()
    assert steps(root) == [3]


class ReadStorage(Storage):
    """Notes which checkpoints are read back."""

    def __init__(self, root):
        super().__init__(root)
        self.was_read = set()

    def read(self, name, file, start, into, *, cached=True):
        super().read(name, file, start, into, cached=cached)
        if file != MANIFEST:
            self.was_read.add(name)


def test_where_reading_costs_too_much_the_newest_verified_one_is_kept_too(root, log, monkeypatch):
    monkeypatch.setattr(retention, "REST", 1e9)
    storage = ReadStorage(root)
    with host_checkpoints(root, 1, log, CheckpointStore(storage)) as checkpoints:
        commit(checkpoints, root, 1)
        wait_until(lambda: storage.was_read)
        for step in (2, 3, 4):
            commit(checkpoints, root, step)
        wait_until(lambda: steps(root) == [4, 1])
        assert storage.was_read == {"step-00000001"}
    assert steps(root) == [4], "all is verified at the end of a run"


def test_an_unexpected_error_is_reported_and_does_not_end_retention(root, log, tmp_path):
    storage = FaultyStorage(root, "step-00000002", ValueError("not ours"))
    with host_checkpoints(root, 1, log, CheckpointStore(storage)) as checkpoints:
        commit(checkpoints, root, 1)
        commit(checkpoints, root, 2)
        while "retention-failed" not in {each["event"] for each in events(tmp_path)}:
            time.sleep(0.001)
        storage.name = ""
        checkpoints.delete_old()
    assert steps(root) == [2]


def test_the_best_is_verified_before_older_ones_are_deleted(root, log, tmp_path):
    with host_checkpoints(root, 9, log) as checkpoints:
        commit(checkpoints, root, 1, best=Best(value=0.5, step=1))
        commit(checkpoints, root, 2, best=Best(value=0.7, step=2))
        commit(checkpoints, root, 3, best=Best(value=0.7, step=2))
    part = root / "step-00000002" / "part-0-of-1.safetensors"
    change_last_byte(part)
    with host_checkpoints(root, 1, log) as checkpoints:
        commit(checkpoints, root, 4, best=Best(value=0.7, step=2))
    assert steps(root) == [4, 1]
    assert (root / "step-00000002.rejected-1").is_dir()
    assert events(tmp_path)[-1]["event"] == "checkpoint-corrupt"


def test_the_first_after_each_multiple_is_kept_too(root, log):
    with host_checkpoints(root, 1, log, every=4) as checkpoints:
        for step in range(2, 13, 2):
            commit(checkpoints, root, step)
    assert steps(root) == [12, 8, 4]


def test_what_is_pinned_while_a_run_is_live_is_kept(root, log):
    with host_checkpoints(root, 9, log) as checkpoints:
        for step in (1, 2):
            commit(checkpoints, root, step)
    with host_checkpoints(root, 1, log) as checkpoints:
        store_in(root).pin("step-00000001")
        commit(checkpoints, root, 3)
    assert steps(root) == [3, 1]
    with host_checkpoints(root, 1, log) as checkpoints:
        store_in(root).unpin("step-00000001")
        checkpoints.delete_old()
    assert steps(root) == [3]
