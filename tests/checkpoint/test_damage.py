"""Whatever happens to a checkpoint's files, a damaged one is refused with a reason."""

import json
import os
import shutil

import pytest
import torch
from safetensors.torch import load_file

from checkpoints import (
    ATTEMPT,
    bytes_of,
    digests_of,
    layout_of,
    restore,
    save,
    state_of,
    store_in,
    write,
)
from holdfast.arena.layout import Field, Layout
from holdfast.checkpoint import names, parts
from holdfast.checkpoint.manifest import Manifest
from holdfast.checkpoint.store import MANIFEST
from holdfast.errors import CheckpointError


@pytest.fixture
def saved(tmp_path):
    layout = layout_of()
    flat = state_of(layout)
    return save(tmp_path, 10, flat, layout), flat, layout


def test_an_interrupted_commit_can_be_repeated(tmp_path):
    draft = tmp_path / names.draft_name(10, ATTEMPT)
    draft.mkdir()
    (draft / MANIFEST).write_text('{"half": ')
    layout = layout_of()
    flat = state_of(layout)
    directory = save(tmp_path, 10, flat, layout)
    assert torch.equal(restore(directory, layout), flat)


@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_what_was_written_is_read_back_bit_for_bit(tmp_path, world):
    layout = layout_of()
    flat = state_of(layout)
    directory = save(tmp_path, 10, flat, layout, world)
    assert torch.equal(restore(directory, layout), flat)
    assert store_in(tmp_path).manifest(directory.name).root == parts.root(
        digests_of(bytes_of(flat)), parts.DigestKind.XXH3
    )


def flip_bit_in_part(directory):
    path = directory / "part-1-of-2.safetensors"
    data = bytearray(path.read_bytes())
    data[-9] ^= 4
    path.write_bytes(data)


def truncate_part(directory):
    path = directory / "part-0-of-2.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


def lose_part(directory):
    (directory / "part-1-of-2.safetensors").unlink()


def swap_parts(directory):
    first, second = (directory / f"part-{i}-of-2.safetensors" for i in range(2))
    data = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(data)


def tear_manifest(directory):
    path = directory / "manifest.json"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty_manifest(directory):
    (directory / "manifest.json").write_bytes(b"")


def lose_manifest(directory):
    (directory / "manifest.json").unlink()


def alter_manifest(directory):
    path = directory / "manifest.json"
    path.write_text(path.read_text().replace('"seed": 0', '"seed": 1'))


def garble_part_header(directory):
    path = directory / "part-0-of-2.safetensors"
    data = bytearray(path.read_bytes())
    data[:8] = b"\xff" * 8
    path.write_bytes(data)


DAMAGE = [
    flip_bit_in_part, truncate_part, lose_part, swap_parts, tear_manifest, empty_manifest,
    lose_manifest, alter_manifest, garble_part_header,
]  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.__name__)
def test_damage_is_rejected_with_a_reason(saved, damage):
    directory, _, layout = saved
    damage(directory)
    with pytest.raises(CheckpointError, match=r"step-00000010"):
        restore(directory, layout)


def test_a_part_of_another_step_is_rejected(saved, tmp_path):
    directory, _, layout = saved
    other = save(tmp_path, 20, state_of(layout, seed=1), layout)
    shutil.copy(other / "part-0-of-2.safetensors", directory)
    with pytest.raises(CheckpointError, match="does not match its digest"):
        restore(directory, layout)


def test_a_checkpoint_under_another_name_is_rejected(saved):
    directory, _, _ = saved
    moved = directory.rename(directory.with_name("step-00000099"))
    with pytest.raises(CheckpointError, match="holds the checkpoint of step 10"):
        store_in(moved.parent).manifest(moved.name)


def test_another_format_is_rejected_with_the_version_that_can_read_it(saved):
    directory, _, _ = saved
    plain = json.loads((directory / MANIFEST).read_text())
    plain |= {"format": 2, "versions": {"holdfast": "0.9"}}
    (directory / MANIFEST).write_text(json.dumps(plain))
    with pytest.raises(
        CheckpointError, match=r"has format 2, .* resume the run with holdfast 0\.9"
    ):
        store_in(directory.parent).manifest(directory.name)


def test_a_part_is_a_safetensors_file_with_the_tensors_of_the_state(tmp_path):
    layout = layout_of(width=7)
    flat = state_of(layout)
    directory = save(tmp_path, 10, flat, layout, world=1)
    tensors = load_file(directory / "part-0-of-1.safetensors")
    for entry in layout.entries:
        assert list(tensors[entry.name].shape) == list(entry.shape)
        stored = tensors[entry.name].flatten().view(torch.uint8)
        assert torch.equal(stored, flat[entry.offset : entry.end])
    assert all(name.startswith(".pad.") for name in set(tensors) - {e.name for e in layout.entries})


def test_strides_of_tensors_are_kept(tmp_path):
    fields = [Field("w", "F32", (2, 3), strides=(1, 2)), Field("b", "F32", (3,))]
    layout = Layout.pack(fields)
    directory = save(tmp_path, 10, state_of(layout), layout, world=1)
    w, b = json.loads((directory / MANIFEST).read_text())["tensors"]
    assert (w["strides"], b["strides"]) == ([1, 2], [])
    assert store_in(tmp_path).manifest(directory.name).layout == layout
    stored = load_file(directory / "part-0-of-1.safetensors")["w"]
    assert stored.shape == (3, 2)  # as it is in memory


@pytest.mark.parametrize("strides", [(3, 2), (1, 1), (1, 3), (1, -2), (1 << 70, 1), (1,), (3, 0)])
def test_strides_that_do_not_fit_are_rejected(tmp_path, strides):
    layout = Layout.pack([Field("w", "F32", (2, 3))])
    directory = save(tmp_path, 10, state_of(layout), layout)
    manifest = store_in(tmp_path).manifest(directory.name)
    tensors = (manifest.tensors[0].model_copy(update={"strides": strides}),)
    text = manifest.model_copy(update={"tensors": tensors}).sealed().model_dump_json()
    with pytest.raises(CheckpointError, match="has strides for w that do not fit it"):
        Manifest.parse(text.encode(), "here")


def test_a_checkpoint_of_another_model_is_rejected_by_name(saved):
    directory, _, _ = saved
    with pytest.raises(CheckpointError, match=r"has w as F32\[1000, 3000\]|w as F32\[1000, 8\]"):
        restore(directory, layout_of(width=8))


def test_a_commit_does_not_depend_on_the_hint_latest(tmp_path):
    layout = layout_of(width=4)
    (tmp_path / "latest").mkdir()  # stands for any failure to write it
    directory = save(tmp_path, 10, state_of(layout), layout)
    assert torch.equal(restore(directory, layout), state_of(layout))


def test_a_newer_checkpoint_of_the_same_step_replaces_it(saved, tmp_path):
    directory, _, layout = saved
    newer = state_of(layout, seed=1)
    save(tmp_path, 10, newer, layout)
    assert torch.equal(restore(directory, layout), newer)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latest", directory.name]


@pytest.mark.parametrize("taken", [False, True])
def test_a_checkpoint_whose_replacement_was_interrupted_is_restored(saved, tmp_path, taken):
    directory, flat, layout = saved
    replaced = directory.with_name(f"{directory.name}.1.tmp")
    if taken:
        shutil.copytree(directory, replaced)
    else:
        directory.rename(replaced)
    store_in(tmp_path).remove_partial()
    assert not replaced.exists()
    assert torch.equal(restore(directory, layout), flat)


@pytest.mark.parametrize("is_whole", [False, True])
def test_an_interrupted_deletion_is_completed(saved, tmp_path, is_whole, monkeypatch):
    directory, _, _ = saved
    with monkeypatch.context() as killed:
        killed.setattr(shutil, "rmtree", lambda removed: None)
        store_in(tmp_path).delete(directory.name)
    (removed,) = tmp_path.glob("*.tmp")
    if not is_whole:
        (removed / "part-0-of-2.safetensors").unlink()
    store_in(tmp_path).remove_partial()
    assert [path.name for path in tmp_path.iterdir()] == ["latest"]


def test_a_link_with_the_name_of_a_draft_is_removed_but_not_its_target(saved, tmp_path):
    directory, flat, layout = saved
    (tmp_path / "step-00000001.ab.tmp").symlink_to(directory)
    store_in(tmp_path).remove_partial()
    assert not (tmp_path / "step-00000001.ab.tmp").is_symlink()
    assert torch.equal(restore(directory, layout), flat)


def test_a_directory_with_too_long_a_number_is_no_checkpoint(saved, tmp_path):
    directory, _, _ = saved
    (tmp_path / "step-99999999999999999999").mkdir()
    assert store_in(tmp_path).committed() == [directory.name]


def test_a_pipe_in_place_of_the_manifest_is_rejected(saved):
    directory, _, _ = saved
    (directory / MANIFEST).unlink()
    os.mkfifo(directory / MANIFEST)
    with pytest.raises(CheckpointError, match="is missing, or is not a file"):
        store_in(directory.parent).manifest(directory.name)


def test_remove_partial_removes_drafts_and_nothing_else(saved, tmp_path):
    directory, flat, layout = saved
    write(tmp_path, 20, flat, layout, attempt="ff")
    (tmp_path / "notes.txt").write_text("mine")
    store_in(tmp_path).remove_partial()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "latest", "notes.txt", directory.name,
    ]  # fmt: skip


def test_no_pickle_is_ever_read(saved):
    directory, _, layout = saved
    torch.save({"w": torch.ones(1)}, directory / "part-0-of-2.safetensors")
    with pytest.raises(CheckpointError):
        restore(directory, layout)
