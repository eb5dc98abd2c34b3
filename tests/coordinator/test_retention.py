"""A checkpoint is deleted only once newer ones have been read back whole."""

import hashlib
import json
import os
import threading

import pytest

from checkpoints import ATTEMPT, header_of, layout_of, state_of, write
from holdfast.arena.layout import Field, Layout
from holdfast.checkpoint import manifest, parts
from holdfast.checkpoint.manifest import Best, PartFile
from holdfast.coordinator import retention
from holdfast.coordinator.checkpoints import CheckpointStore
from holdfast.core.actions import CommitCheckpoint
from holdfast.core.protocol import Part
from holdfast.observe.lines import EventLog

LAYOUT = layout_of(width=4)


@pytest.fixture
def log(tmp_path):
    with EventLog(tmp_path / "events.jsonl") as events:
        yield events


@pytest.fixture
def root(tmp_path):
    path = tmp_path / "checkpoints"
    path.mkdir()
    return path


def commit(to, root, step, *, bad=False, layout=LAYOUT, **fields):
    """Have the coordinator commit a checkpoint that workers have written, the last part badly."""
    attempt = manifest.attempt_in(1, ATTEMPT)
    files = write(root, step, state_of(layout, seed=step), layout, attempt=attempt)
    if bad:
        path = root / manifest.temporary_name(step, attempt) / files[-1].file
        data = bytearray(path.read_bytes())
        data[-5] ^= 1
        path.write_bytes(data)
    header = header_of(layout, step, **fields).model_dump(mode="json")
    contents = [{"file": file.model_dump(mode="json"), "header": header} for file in files]
    written = {rank: Part(number=1, step=step, content=each) for rank, each in enumerate(contents)}
    verdict = to.commit(CommitCheckpoint(1, 1, step, written))
    assert not verdict.error


def steps(root):
    return [manifest.step_of(path) for path in manifest.committed(root)]


def events(tmp_path):
    return [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_the_newest_are_kept(root, log, keep):
    with CheckpointStore(root, ATTEMPT, keep, log) as checkpoints:
        for step in range(1, 6):
            commit(checkpoints, root, step)
    assert steps(root) == [5, 4, 3, 2, 1][:keep]


def test_a_bad_write_does_not_cost_the_last_good_checkpoint(root, log, tmp_path):
    with CheckpointStore(root, ATTEMPT, 1, log) as checkpoints:
        commit(checkpoints, root, 1)
        commit(checkpoints, root, 2, bad=True)
    assert steps(root) == [1]
    aside = root / "step-00000002.rejected-1"
    assert aside.is_dir()
    (damaged,) = [event for event in events(tmp_path) if event["event"] == "checkpoint-corrupt"]
    assert (damaged["step"], damaged["directory"]) == (2, str(aside))
    assert damaged["file"] == "part-1-of-2.safetensors"
    assert "chunk 0 of the state does not match its digest" in damaged["reason"]


def test_the_only_one_stays_though_it_is_bad(root, log, tmp_path):
    with CheckpointStore(root, ATTEMPT, 1, log) as checkpoints:
        commit(checkpoints, root, 1, bad=True)
        checkpoints.delete_old()
    assert steps(root) == [1]  # workers must refuse it, not begin the run again
    damaged = [event for event in events(tmp_path) if event["event"] == "checkpoint-corrupt"]
    assert [each["directory"] for each in damaged] == [str(root / "step-00000001")]
    with CheckpointStore(root, ATTEMPT, 1, log) as checkpoints:
        commit(checkpoints, root, 2)
    assert steps(root) == [2]


def test_one_that_is_bad_does_not_count_among_those_kept(root, log):
    with CheckpointStore(root, ATTEMPT, 2, log) as checkpoints:
        for step in (1, 2, 3, 4):
            commit(checkpoints, root, step, bad=step in (2, 4))
    assert steps(root) == [3, 1]


def test_a_damaged_manifest_is_noticed_too(root, log, tmp_path):
    with CheckpointStore(root, ATTEMPT, 2, log) as checkpoints:
        commit(checkpoints, root, 1)
    (root / "step-00000001" / manifest.MANIFEST).write_bytes(b"{")
    with CheckpointStore(root, ATTEMPT, 2, log) as checkpoints:
        commit(checkpoints, root, 2)
    assert steps(root) == [2]
    assert events(tmp_path)[-1]["file"] == manifest.MANIFEST


def test_nothing_is_set_aside_before_workers_have_restored(root, log):
    with CheckpointStore(root, ATTEMPT, 1, log) as checkpoints:
        commit(checkpoints, root, 1)
    (root / "step-00000001" / manifest.MANIFEST).write_bytes(b"{")
    with CheckpointStore(root, ATTEMPT, 1, log):
        pass
    assert steps(root) == [1]


def test_a_coordinator_that_is_restarted_verifies_what_it_finds(root, log):
    with CheckpointStore(root, ATTEMPT, 9, log) as checkpoints:
        for step in (1, 2, 3):
            commit(checkpoints, root, step)
    part = root / "step-00000003" / "part-1-of-2.safetensors"
    part.write_bytes(part.read_bytes()[:-1] + b"\xa5")
    with CheckpointStore(root, ATTEMPT, 2, log) as checkpoints:
        commit(checkpoints, root, 4)
    assert steps(root) == [4, 2]


def test_the_best_is_kept_besides(root, log):
    with CheckpointStore(root, ATTEMPT, 1, log) as checkpoints:
        commit(checkpoints, root, 1)
        commit(checkpoints, root, 2, best=Best(value=0.5, step=2))
        commit(checkpoints, root, 3, best=Best(value=0.5, step=2))
        commit(checkpoints, root, 4, best=Best(value=0.5, step=2))
    assert steps(root) == [4, 2]


def test_a_best_that_is_bad_does_not_cost_the_best_before(root, log):
    with CheckpointStore(root, ATTEMPT, 1, log) as checkpoints:
        commit(checkpoints, root, 1, best=Best(value=0.5, step=1))
        commit(checkpoints, root, 2, best=Best(value=0.5, step=1))
        commit(checkpoints, root, 3, best=Best(value=0.7, step=3), bad=True)
    assert steps(root) == [2, 1]


def commit_huge(to, root, step):
    """Commit a checkpoint of 64 GiB of zeros, a hole in its file, which takes long to read."""
    size = 1 << 36
    layout = Layout.pack([Field("w", "F32", (size // 4,))])
    attempt = manifest.attempt_in(1, ATTEMPT)
    path = root / manifest.temporary_name(step, attempt) / "part-0-of-1.safetensors"
    path.parent.mkdir()
    tensor = {"dtype": "F32", "shape": [size // 4], "data_offsets": [0, size]}
    header = json.dumps({"w": tensor}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    os.truncate(path, 8 + len(header) + size)
    zeros = hashlib.sha256(bytes(parts.CHUNK_BYTES)).hexdigest()
    file = PartFile(
        file=path.name,
        size_bytes=path.stat().st_size,
        first_chunk=0,
        digests=(zeros,) * parts.num_chunks(size),
    )
    content = {
        "file": file.model_dump(mode="json"),
        "header": header_of(layout, step).model_dump(mode="json"),
    }
    to.commit(CommitCheckpoint(1, 1, step, {0: Part(number=1, step=step, content=content)}))


def test_neither_a_commit_nor_the_end_waits_for_a_long_verification(root, log, monkeypatch):
    with CheckpointStore(root, ATTEMPT, 1, log) as checkpoints:
        commit(checkpoints, root, 1)
    monkeypatch.setattr(retention, "CLOSE_S", 0.0)
    threads = threading.active_count()
    with CheckpointStore(root, ATTEMPT, 1, log) as checkpoints:
        commit_huge(checkpoints, root, 2)
    assert threading.active_count() == threads
    assert steps(root) == [2, 1]
