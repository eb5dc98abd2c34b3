"""What is in a backup is whole, whatever interrupts an upload, and however a store behaves."""

import json
import shutil

import pytest
import torch

from checkpoints import layout_of, restore, save, state_of, store_in
from holdfast.checkpoint import names
from holdfast.checkpoint.held import held
from holdfast.checkpoint.remote.backup import FOLDER, Backup, folder_of, step_of
from holdfast.checkpoint.remote.open import open_store
from holdfast.checkpoint.transfer import described, receive
from holdfast.errors import CheckpointError
from object_stores import Late, make_bucket, s3_server

WIDTH = 5000  # 20 MB: two pieces, the second one short


@pytest.fixture(scope="module")
def s3():
    with s3_server() as endpoint:
        make_bucket("backups")
        yield endpoint


@pytest.fixture(params=["directory", "s3", "late"])
def objects(request, tmp_path):
    if request.param == "s3":
        request.getfixturevalue("s3")
    is_bucket = request.param == "s3"
    url = f"s3://backups/{tmp_path.name}" if is_bucket else str(tmp_path / "backup")
    opened = open_store(url, {"AWS_ALLOW_HTTP": "true"})
    return Late(opened) if request.param == "late" else opened


@pytest.fixture
def directory(tmp_path):
    """A store in a directory, where tests can look and do damage."""
    return open_store(str(tmp_path / "backup"), {})


@pytest.fixture
def run(tmp_path):
    return tmp_path / "run" / "checkpoints"


def silent(_):
    pass


def fetched(backup, folder, root):
    """The directory of a checkpoint that was fetched from a backup."""
    manifest = backup.manifest(folder)
    stream = backup.stream(folder, manifest, silent)
    return root / receive(store_in(root), "0b", stream, described(manifest))


def steps(backup):
    return [step_of(folder) for folder in backup.whole()]


def test_a_checkpoint_comes_back_bit_for_bit_from_every_kind_of_store(objects, run, tmp_path):
    layout, sent = layout_of(WIDTH), []
    flat = state_of(layout)
    saved = save(run, 10, flat, layout)
    copy(Backup(objects), run, saved.name, sent.append)
    assert sent == [16 << 20, layout.size_bytes]
    backup = Backup(objects)
    [folder] = backup.whole()
    back = fetched(backup, folder, tmp_path / "elsewhere")
    assert torch.equal(restore(back, layout), flat)
    assert {path.name: path.read_bytes() for path in back.iterdir()} == {
        path.name: path.read_bytes() for path in saved.iterdir()
    }


def copy(backup, root, name, report=silent):
    with held(root.parent, name) as store:
        backup.upload(store, name, report)


class Interrupted(Exception):
    pass


def interrupt(_):
    raise Interrupted


def test_an_interrupted_upload_is_no_checkpoint_and_is_continued(objects, run):
    layout = layout_of(WIDTH)
    name = save(run, 10, state_of(layout), layout).name
    with pytest.raises(Interrupted):
        copy(Backup(objects), run, name, interrupt)
    backup, written = Backup(objects), []
    assert backup.whole() == []

    class Counted(Late):
        def put(self, name, data, *, new=False):
            written.append(name.rpartition("/")[2])
            return self._objects.put(name, data, new=new)

    for _ in range(3):
        objects.children(f"{FOLDER}/{folder_of(store_in(run).manifest(name))}")
    copy(Backup(Counted(objects, late=0)), run, name)
    assert written == ["00000004", "manifest.json", "index.json"]
    assert steps(Backup(objects)) == [10]


def test_a_piece_that_was_cut_off_is_sent_again(directory, run, tmp_path):
    layout = layout_of(WIDTH)
    flat = state_of(layout)
    name = save(run, 10, flat, layout).name
    with pytest.raises(Interrupted):
        copy(Backup(directory), run, name, interrupt)
    [piece] = (tmp_path / "backup").rglob("00000000")
    piece.write_bytes(piece.read_bytes()[:-1])
    backup = Backup(directory)
    copy(backup, run, name)
    back = fetched(backup, backup.whole()[0], tmp_path / "elsewhere")
    assert torch.equal(restore(back, layout), flat)


def test_a_manifest_that_was_cut_off_is_written_again(directory, run, tmp_path):
    layout = layout_of(4)
    name = save(run, 10, state_of(layout), layout).name
    copy(Backup(directory), run, name)
    [manifest] = (tmp_path / "backup").rglob("manifest.json")
    text = manifest.read_bytes()
    manifest.write_bytes(text[:50])
    backup = Backup(directory)
    with pytest.raises(CheckpointError, match="damaged"):
        backup.manifest(backup.whole()[0])
    copy(backup, run, name)
    assert manifest.read_bytes() == text


def test_a_damaged_checkpoint_is_not_copied(directory, run):
    layout = layout_of(WIDTH)
    saved = save(run, 10, state_of(layout), layout)
    part = saved / "part-1-of-2.safetensors"
    data = bytearray(part.read_bytes())
    data[-9] ^= 4
    part.write_bytes(data)
    with pytest.raises(CheckpointError, match="does not match its digest"):
        copy(Backup(directory), run, saved.name)
    assert Backup(directory).whole() == []


def test_a_checkpoint_that_retention_deletes_meanwhile_is_copied_to_its_end(directory, run):
    layout = layout_of(WIDTH)
    saved = save(run, 10, state_of(layout), layout)
    backup = Backup(directory)
    copy(backup, run, saved.name, lambda _: shutil.rmtree(saved, ignore_errors=True))
    assert not saved.exists()
    assert steps(backup) == [10]


def flip_a_bit(path):
    data = bytearray(path.read_bytes())
    data[9] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (flip_a_bit, "does not match its digest"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "has 16777215 bytes"),
        (lambda path: path.unlink(), "00000000 is missing"),
    ],
)
def test_damage_in_a_backup_is_found_and_leaves_nothing(directory, run, tmp_path, damage, reason):
    layout = layout_of(WIDTH)
    copy(Backup(directory), run, save(run, 10, state_of(layout), layout).name)
    [piece] = (tmp_path / "backup").rglob("00000000")
    damage(piece)
    backup, root = Backup(directory), tmp_path / "elsewhere"
    with pytest.raises(CheckpointError, match=reason):
        fetched(backup, backup.whole()[0], root)
    assert [*root.glob("*")] == []


@pytest.fixture
def upload(run):
    """Save and copy small checkpoints: `upload(backup, step, …)`."""
    layout = layout_of(4)

    def of(backup, *steps):
        for step in steps:
            name = save(run, step, state_of(layout, seed=step), layout).name
            copy(backup, run, name)

    return of


def test_retention_keeps_the_newest_and_the_best(objects, upload):
    backup = Backup(objects)
    upload(backup, 10, 20, 30, 40)
    backup.prune(2, best_step=10)
    assert steps(backup) == [40, 30, 10]
    objects.children(FOLDER)
    assert steps(Backup(objects)) == [40, 30, 10]
    backup.prune(1, best_step=None)
    assert steps(Backup(objects)) == [40]
    backup.prune(1, best_step=None)
    assert steps(Backup(objects)) == [40]


def test_nothing_is_left_of_what_was_deleted(directory, upload, run, tmp_path):
    backup = Backup(directory)
    layout = layout_of(WIDTH)
    with pytest.raises(Interrupted):
        copy(backup, run, save(run, 5, state_of(layout), layout).name, interrupt)
    upload(backup, 10, 20)
    backup.prune(1, best_step=None)
    kept = {path.name for path in (tmp_path / "backup" / FOLDER).iterdir()}
    assert kept == {"index.json", backup.whole()[0]}


def test_the_newest_is_what_came_last_even_after_steps_were_taken_back(directory, upload):
    backup = Backup(directory)
    upload(backup, 10, 20, 15)
    assert steps(Backup(directory)) == [15, 20, 10]
    backup.prune(2, best_step=None)
    assert steps(Backup(directory)) == [15, 20]


@pytest.mark.parametrize("index", [b"", b"{", b"7", b"[1]", b'["step-00000099-0123456789abcdef"]'])
def test_an_index_that_is_wrong_hides_nothing(directory, upload, index):
    upload(Backup(directory), 10, 20)
    directory.put(f"{FOLDER}/index.json", index)
    assert steps(Backup(directory)) == [20, 10]


def test_a_checkpoint_that_the_index_does_not_name_yet_is_the_newest(directory, upload):
    backup = Backup(directory)
    upload(backup, 10, 20, 30)
    known = backup.whole()[::-1]
    directory.put(f"{FOLDER}/index.json", json.dumps([known[1]]).encode())
    assert steps(Backup(directory)) == [30, 20, 10]


def test_a_listing_that_shows_nothing_hides_no_checkpoint(tmp_path, upload):
    hidden = Late(open_store(str(tmp_path / "backup"), {}), 99)
    upload(Backup(hidden), 10, 20)
    assert steps(Backup(hidden)) == [20, 10]


def test_other_names_in_the_folder_are_no_checkpoints(directory, upload):
    upload(Backup(directory), 10)
    for other in ("step-10-0123456789abcdef", "notes", "step-00000010", "step-00000010-x"):
        directory.put(f"{FOLDER}/{other}/manifest.json", b"{}")
    backup = Backup(directory)
    assert steps(backup) == [10]
    backup.prune(1, best_step=None)
    assert len(directory.children(FOLDER)) == 6
    assert names.is_checkpoint("step-00000010")
