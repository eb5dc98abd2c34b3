"""What a host commits, and what it does not."""

import errno
import json
import math
import os
import select
import shutil
import socket
from dataclasses import replace

import pytest
from test_checkpoint_retention import LAYOUT, commit, perform, staged_by

from checkpoints import (
    ATTEMPT,
    bytes_of,
    digests_of,
    header_of,
    host_checkpoints,
    state_of,
    store_in,
    write,
)
from conftest import wait_until
from holdfast.checkpoint import names
from holdfast.checkpoint.manifest import Parent
from holdfast.checkpoint.part_file import write_part
from holdfast.checkpoint.sealing.seal import UNSEALED
from holdfast.checkpoint.storage import Storage
from holdfast.checkpoint.store import CheckpointStore
from holdfast.core.actions import FindCheckpoint, PrepareCheckpoint, RemovePartialCheckpoints
from holdfast.core.code_version import CodeVersion
from holdfast.core.events import CheckpointFound
from holdfast.core.protocol import CheckpointPart, StoredCheckpoint
from holdfast.errors import CheckpointError, ProtocolError
from holdfast.rundir.json_lines import EventLog
from keys import seal_of, signing_key

LISTS_OF_TWO_LOOKS = 6
"""The most listings by which a storage has been looked at once, and again."""


class CountingStorage(Storage):
    """A directory that counts how often it was to be listed."""

    lists = 0

    def names(self):
        self.lists += 1
        return super().names()


@pytest.fixture
def checkpoints(tmp_path):
    root = tmp_path / "checkpoints"
    root.mkdir()
    with (
        EventLog(tmp_path / "events.jsonl") as log,
        host_checkpoints(root, None, log, CheckpointStore(CountingStorage(root))) as found,
    ):
        yield found, root


@pytest.mark.parametrize("value", [1.5, math.nan, math.inf])
def test_the_same_checkpoint_is_committed_once(checkpoints, value):
    found, root = checkpoints
    commit(found, root, 3, state={"value": value})
    inode = (root / "step-00000003").stat().st_ino
    commit(found, root, 3, state={"value": value})
    assert (root / "step-00000003").stat().st_ino == inode


def test_another_state_of_the_same_step_takes_its_place(checkpoints):
    found, root = checkpoints
    commit(found, root, 3, state={"value": 1})
    commit(found, root, 3, state={"value": 2})
    assert store_in(root).manifest("step-00000003").state == {"value": 2}
    assert store_in(root).committed() == ["step-00000003"]


def parts_of(to, root, step, others=()):
    def write(draft, _):
        state = bytes_of(state_of(LAYOUT))
        return write_part(Storage(root), draft, state, LAYOUT, 0, 1, UNSEALED)

    parts = staged_by(to, write, header_of(LAYOUT, step))
    return {**parts, 1: replace(parts[1], content={"others": others})}


def failures(root):
    lines = (root.parent / "events.jsonl").read_text().splitlines()
    return [each for each in map(json.loads, lines) if each["event"] == "checkpoint-failed"]


def test_a_part_that_was_not_written_fails_the_checkpoint_of_its_host(checkpoints):
    found, root = checkpoints
    written = parts_of(found, root, 3)
    written[1] = replace(written[1], error="rank 1: disk full")
    assert perform(found, 3, written).error == "rank 1: disk full"
    assert list(root.iterdir()) == [], "the draft does not hold space"
    assert [each["reason"] for each in failures(root)] == ["rank 1: disk full"]


def test_a_draft_that_cannot_be_published_fails_the_checkpoint_of_its_host(
    checkpoints, monkeypatch
):
    found, root = checkpoints
    error = OSError(errno.EROFS, os.strerror(errno.EROFS))

    def publish(*_):
        raise error

    monkeypatch.setattr(Storage, "publish", publish)
    assert perform(found, 3, parts_of(found, root, 3)).error == str(error)
    assert list(root.iterdir()) == []
    assert [each["reason"] for each in failures(root)] == [str(error)]


def test_what_is_no_part_is_an_error_of_the_protocol(checkpoints):
    found, _ = checkpoints
    with pytest.raises(ProtocolError, match="invalid part of a checkpoint"):
        perform(
            found,
            3,
            {0: CheckpointPart(number=1, step=3, count=1, content={"file": "/etc/passwd"})},
        )


def test_drafts_of_older_generations_are_removed_and_those_of_this_one_stay(checkpoints):
    found, root = checkpoints
    for generation in (1, 2):
        attempt = names.attempt_in(generation, ATTEMPT)
        write(root, 3, state_of(LAYOUT), LAYOUT, attempt=attempt)
    found.perform(RemovePartialCheckpoints(2))
    draft = root / names.draft_name(3, names.attempt_in(2, ATTEMPT))
    wait_until(lambda: list(root.iterdir()) == [draft])
    found.perform(FindCheckpoint(2))
    wait_until(lambda: found.results() == [CheckpointFound(2, None)])
    assert list(root.iterdir()) == [], "no worker writes while a checkpoint is looked for"


def test_replicas_that_differ_fail_the_checkpoint_and_are_compared_by_all(checkpoints):
    found, root = checkpoints
    digests = digests_of(bytes_of(state_of(LAYOUT)))
    assert perform(found, 3, parts_of(found, root, 3, others=digests)).error == ""
    assert not found.arena.comparison_requested
    wrong = ("0" * len(digests[0]), *digests[1:])
    error = perform(found, 4, parts_of(found, root, 4, others=wrong)).error
    assert (
        error == "the replica of rank 1 differs from that of another worker in chunk 0 of the state"
    )
    assert found.arena.comparison_requested
    assert store_in(root).committed() == ["step-00000003"]


def test_what_was_staged_before_a_generation_ended_is_published_in_the_next(checkpoints):
    found, root = checkpoints
    found.perform(PrepareCheckpoint(1, parts_of(found, root, 3)))
    found.perform(FindCheckpoint(2))
    newest = CheckpointFound(2, StoredCheckpoint(step=3, name="step-00000003"))
    wait_until(lambda: newest in found.results())
    assert store_in(root).committed() == ["step-00000003"]


def not_listable(root):
    root.touch()
    return root.unlink


def unmounted(root):
    root.mkdir()  # the empty directory below the mount point
    return root.rmdir


def of_another_time(root):
    root.mkdir()
    (root / "step-00000002").mkdir()
    return lambda: shutil.rmtree(root)


def dangling(root):
    root.symlink_to("not-mounted")
    return root.unlink


def in_a_loop(root):
    root.symlink_to(root.name)
    return root.unlink


def moved(_):
    return lambda: None


def taken_away(root, instead):
    """Take the storage away; returns what brings it back."""
    away = root.rename(root.with_name("away"))
    remove = instead(root)

    def bring_back():
        remove()
        away.rename(root)

    return bring_back


def manifest_taken_away(root, instead):
    return taken_away(root / "step-00000003" / "manifest.json", instead)


INSTEAD = [not_listable, unmounted, of_another_time, dangling, in_a_loop, moved]
AWAY = [
    *((taken_away, each) for each in INSTEAD),
    *((manifest_taken_away, each) for each in (unmounted, in_a_loop)),
]


@pytest.mark.parametrize(("take", "instead"), AWAY)
def test_a_storage_that_is_out_of_reach_for_a_moment_is_listed_again(
    checkpoints, monkeypatch, take, instead
):
    found, root = checkpoints
    storage = found._store.storage
    monkeypatch.setattr("holdfast.checkpoint.recorded.PAUSE_S", 0.01)
    commit(found, root, 2)
    commit(found, root, 3)
    bring_back, before = take(root, instead), storage.lists
    found.perform(FindCheckpoint(2))
    found.perform(FindCheckpoint(3))
    wait_until(lambda: storage.lists >= before + LISTS_OF_TWO_LOOKS)
    assert not found.results(), "nothing is known of the checkpoints"
    bring_back()
    newest = CheckpointFound(3, StoredCheckpoint(step=3, name="step-00000003"))
    wait_until(lambda: newest in found.results())
    assert found.found == ["step-00000003", "step-00000002"]


@pytest.mark.parametrize(("take", "instead"), AWAY)
def test_a_storage_that_stays_out_of_reach_is_not_taken_for_empty(
    checkpoints, monkeypatch, take, instead
):
    found, root = checkpoints
    monkeypatch.setattr("holdfast.checkpoint.recorded.LIST_TIMEOUT_S", 0.0)
    commit(found, root, 2)
    commit(found, root, 3)
    take(root, instead)
    found.perform(FindCheckpoint(2))
    select.select([found], [], [], 60)
    with pytest.raises(CheckpointError, match=r"cannot be read: |is not there; ") as error:
        found.results()
    assert str(root) in str(error.value)
    assert "resume the run" in str(error.value)


def test_a_manifest_that_can_be_read_and_is_damaged_is_skipped(checkpoints):
    found, root = checkpoints
    commit(found, root, 2)
    commit(found, root, 3)
    (root / "step-00000003" / "manifest.json").write_text('{"torn": ')
    found.perform(FindCheckpoint(2))
    newest = CheckpointFound(2, StoredCheckpoint(step=2, name="step-00000002"))
    wait_until(lambda: newest in found.results())
    assert found.found == ["step-00000003", "step-00000002"], "workers say why they skip it"


def test_a_run_that_has_committed_nothing_begins_without_a_directory(checkpoints):
    found, root = checkpoints
    root.rmdir()
    found.perform(FindCheckpoint(2))
    wait_until(lambda: found.results() == [CheckpointFound(2, None)])


def test_memory_is_free_again_once_what_was_staged_in_it_is_written(checkpoints):
    found, root = checkpoints
    assert found.arena.released is None, "an earlier generation may have staged something"
    found.perform(RemovePartialCheckpoints(1))
    wait_until(lambda: found.arena.released == 0)
    found.perform(PrepareCheckpoint(1, parts_of(found, root, 3)))
    wait_until(lambda: found.arena.released == 1)


def test_a_manifest_says_where_it_comes_from_and_what_was_before(tmp_path):
    root, code = tmp_path / "checkpoints", CodeVersion(commit="c0ffee", is_modified=True)
    root.mkdir()
    seal = seal_of(sign=signing_key(tmp_path / "key"))
    store = store_in(root, seal)
    with (
        EventLog(tmp_path / "events.jsonl") as log,
        host_checkpoints(root, 9, log, store, code) as found,
    ):
        for step in (2, 5, 5):  # the last one has another state
            commit(found, root, step, seal=seal, state={"commits": len(store.committed())})
    first, second = (store.manifest(f"step-0000000{step}") for step in (2, 5))
    assert first.origin.code == second.origin.code == code
    assert first.origin.host == socket.gethostname()
    assert first.parent is None
    assert second.parent == Parent(name="step-00000002", root=first.root)
    assert second.state == {"commits": 2}


def test_replicas_are_compared_by_the_same_digests_where_a_checkpoint_is_signed(tmp_path):
    root = tmp_path / "checkpoints"
    root.mkdir()
    seal = seal_of(sign=signing_key(tmp_path / "key"))
    state = bytes_of(state_of(LAYOUT))
    part = write_part(Storage(root), "step-00000003.0a.tmp", state, LAYOUT, 0, 1, seal)
    assert part.staged_digests == tuple(digests_of(state))
    assert part.file.digests == tuple(digests_of(state, seal.digest_kind)) != part.staged_digests
