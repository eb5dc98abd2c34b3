"""Whatever is done to a checkpoint, plain or sealed, a message refuses it by the file's name."""

import json
import re
import shutil

import pytest
import torch

from checkpoints import layout_of, restore, save, state_of, store_in
from holdfast.checkpoint import parts
from holdfast.checkpoint.exports import weights
from holdfast.checkpoint.manifest import Manifest
from holdfast.checkpoint.store import MANIFEST
from holdfast.errors import CheckpointError, JobError
from keys import encryption_key, seal_of, signing_key

PARTS = ("part-0-of-2.safetensors", "part-1-of-2.safetensors")
LAYOUT = layout_of(width=50)
SEALS = {"plain": (), "signed": ("sign",), "encrypted": ("encrypt",), "both": ("sign", "encrypt")}


class Saved:
    """Checkpoints of steps 9 and 10, of equal size.

    Attributes:
        older, newer: Their directories.
        files: The files of the keys, by job key.
        seal: These keys.
    """

    def __init__(self, folder, names):
        folder.mkdir()
        make = {"sign": signing_key, "encrypt": encryption_key}
        self.files = {name: make[name](folder / name) for name in names}
        self.seal = seal_of(**self.files)
        self.older, self.newer = (
            save(folder / "checkpoints", step, state_of(LAYOUT, seed=step), LAYOUT, seal=self.seal)
            for step in (9, 10)
        )

    def restore(self, seal=None):
        """The state of the newer one, as a worker restores it."""
        return restore(self.newer, LAYOUT, self.seal if seal is None else seal)

    def manifest(self):
        return json.loads((self.newer / MANIFEST).read_bytes())

    def rewrite(self, plain, *, seal=None):
        """Give the newer one another manifest, with digests that match it again."""
        found = Manifest.model_validate_json(json.dumps(plain))
        chunks = [digest for part in found.parts for digest in part.digests]
        root = parts.root(chunks, found.digest_kind)
        found = found.model_copy(update={"root": root}).sealed()
        if seal is not None:
            found = seal.signed(found)
        (self.newer / MANIFEST).write_text(found.model_dump_json())


@pytest.fixture(scope="module", autouse=True)
def _small_chunks():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, "CHUNK_BYTES", 1 << 16)
        assert parts.num_chunks(LAYOUT.size_bytes) == 4
        yield


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    root = tmp_path_factory.mktemp("originals")
    return {kind: Saved(root / kind, names) for kind, names in SEALS.items()}


@pytest.fixture
def saved_as(originals, tmp_path):
    """Gives a copy of checkpoints of one kind: `saved_as(kind) -> Saved`."""

    def copy(kind):
        original = originals[kind]
        copied = Saved.__new__(Saved)
        copied.files, copied.seal = original.files, original.seal
        root = shutil.copytree(original.newer.parent, tmp_path / "run" / "checkpoints")
        copied.older, copied.newer = root / original.older.name, root / original.newer.name
        return copied

    return copy


def change(path, at, content):
    with path.open("r+b") as file:
        file.seek(at)
        file.write(content)


def flip_a_bit(saved):
    path = saved.newer / PARTS[1]
    change(path, path.stat().st_size // 2, bytes([path.read_bytes()[path.stat().st_size // 2] ^ 8]))


def zero_a_page(saved):
    change(saved.newer / PARTS[1], 8192, bytes(4096))


def cut_the_end(saved):
    path = saved.newer / PARTS[1]
    path.write_bytes(path.read_bytes()[:-4096])


def append_a_byte(saved):
    path = saved.newer / PARTS[1]
    path.write_bytes(path.read_bytes() + b"\0")


def swap_the_parts(saved):
    first, second = (saved.newer / part for part in PARTS)
    first.rename(saved.newer / "aside")
    second.rename(first)
    (saved.newer / "aside").rename(second)


def take_a_stale_part(saved):
    stale, fresh = saved.older / PARTS[1], saved.newer / PARTS[1]
    assert stale.stat().st_size == fresh.stat().st_size
    shutil.copy(stale, fresh)


def lose_a_part(saved):
    (saved.newer / PARTS[1]).unlink()


def garble_a_header(saved):
    change(saved.newer / PARTS[1], 8, b"[")


def lose_the_manifest(saved):
    (saved.newer / MANIFEST).unlink()


def take_a_stale_manifest(saved):
    shutil.copy(saved.older / MANIFEST, saved.newer / MANIFEST)


def edit_the_manifest(saved):
    path = saved.newer / MANIFEST
    path.write_text(path.read_text().replace('"loss": null', '"loss": 0.5'))


def edit_digests_and_those_over_them(saved):
    plain = saved.manifest()
    first, second = plain["parts"]
    first["digests"][0] = second["digests"][0]
    if first["encryption"]:
        first["encryption"]["digests"][0] = second["encryption"]["digests"][0]
        first["encryption"]["tags"][0] = second["encryption"]["tags"][0]
    saved.rewrite(plain)


def leave_a_gap(saved):
    plain = saved.manifest()
    plain["parts"][1]["first_chunk"] += 1
    saved.rewrite(plain)


def claim_more_than_there_is(saved):
    plain = saved.manifest()
    plain["size_bytes"] += parts.CHUNK_BYTES
    saved.rewrite(plain)


def name_another_size(saved):
    plain = saved.manifest()
    plain["parts"][1]["size_bytes"] -= 1
    saved.rewrite(plain)


def digest_otherwise(saved):
    plain = saved.manifest()
    plain["digest_kind"] = {"blake3": "xxh3-128", "xxh3-128": "blake3"}[plain["digest_kind"]]
    saved.rewrite(plain)


DAMAGE = {
    flip_a_bit: PARTS[1],
    zero_a_page: PARTS[1],
    cut_the_end: PARTS[1],
    append_a_byte: PARTS[1],
    swap_the_parts: "part-",
    take_a_stale_part: PARTS[1],
    lose_a_part: PARTS[1],
    garble_a_header: PARTS[1],
    lose_the_manifest: MANIFEST,
    take_a_stale_manifest: "",
    edit_the_manifest: MANIFEST,
    edit_digests_and_those_over_them: "",
    leave_a_gap: MANIFEST,
    claim_more_than_there_is: MANIFEST,
    name_another_size: "",
    digest_otherwise: MANIFEST,
}
"""What is done, and the file that the message names; none: the checkpoint's directory."""


@pytest.mark.parametrize("kind", SEALS)
def test_an_undamaged_checkpoint_is_restored(saved_as, kind):
    assert torch.equal(saved_as(kind).restore(), state_of(LAYOUT, seed=10))


@pytest.mark.parametrize("kind", SEALS)
@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.__name__)
def test_damage_is_refused_by_the_name_of_the_file(saved_as, kind, damage):
    saved = saved_as(kind)
    damage(saved)
    where = f"{saved.newer}/{DAMAGE[damage]}" if DAMAGE[damage] else str(saved.newer)
    with pytest.raises(CheckpointError, match=re.escape(where)):
        saved.restore()
    if kind in ("plain", "encrypted"):  # reading weights checks no signature
        with pytest.raises(CheckpointError, match=f"{re.escape(where)}.*; use another checkpoint"):
            weights.read_checkpoint(saved.newer, key=saved.files.get("encrypt"))
    assert torch.equal(restore(saved.older, LAYOUT, saved.seal), state_of(LAYOUT, seed=9))


def forge_a_field(saved):
    saved.rewrite(saved.manifest() | {"loss": 0.5})


def drop_the_signature(saved):
    saved.rewrite(saved.manifest() | {"signature": None})


def sign_with_another_key(saved):
    other = seal_of(sign=signing_key(saved.newer.parent / "other"))
    saved.rewrite(saved.manifest(), seal=other)


def take_the_signature_of_another_manifest(saved):
    older = json.loads((saved.older / MANIFEST).read_bytes())
    saved.rewrite(saved.manifest() | {"signature": older["signature"]})


@pytest.mark.parametrize("kind", ["signed", "both"])
@pytest.mark.parametrize(
    ("forge", "reason"),
    [
        (forge_a_field, "does not match its signature by key .*: it was altered; use another"),
        (drop_the_signature, "is not signed, and only key .* is trusted; .* without checkpoint"),
        (sign_with_another_key, "is signed by key .*, and only key .* is trusted; name the file"),
        (take_the_signature_of_another_manifest, "does not match its signature by key"),
    ],
)
def test_a_forged_manifest_is_refused_by_what_differs(saved_as, kind, forge, reason):
    saved = saved_as(kind)
    forge(saved)
    with pytest.raises(
        CheckpointError, match=rf"{re.escape(str(saved.newer / MANIFEST))} {reason}"
    ):
        saved.restore()
    assert store_in(saved.newer.parent).manifest(saved.newer.name)  # it matches its own digests


def swap_the_data_keys(first, second, _):
    first["data_key"], second["data_key"] = second["data_key"], first["data_key"]


def take_a_stale_data_key(first, _, stale):
    first["data_key"] = stale["data_key"]


def alter_a_data_key(first, _, __):
    first["data_key"] = first["data_key"][:-1] + ("0" if first["data_key"][-1] != "0" else "1")


def alter_a_tag(first, _, __):
    first["tags"][0] = first["tags"][0][::-1]


def lose_a_tag(first, _, __):
    first["tags"].pop()


@pytest.mark.parametrize(
    "alter",
    [swap_the_data_keys, take_a_stale_data_key, alter_a_data_key, alter_a_tag, lose_a_tag],
)
def test_altered_keys_and_tags_are_refused(saved_as, alter):
    saved = saved_as("encrypted")
    plain, older = saved.manifest(), json.loads((saved.older / MANIFEST).read_bytes())
    alter(*(part["encryption"] for part in plain["parts"]), older["parts"][0]["encryption"])
    saved.rewrite(plain)
    with pytest.raises(CheckpointError, match=r"step-00000010/.*(data key|tag)"):
        saved.restore()


def test_a_part_of_another_checkpoint_with_its_record_does_not_open(saved_as):
    saved = saved_as("encrypted")
    plain, older = saved.manifest(), json.loads((saved.older / MANIFEST).read_bytes())
    take_a_stale_part(saved)
    plain["parts"][1] = older["parts"][1]
    saved.rewrite(plain)
    with pytest.raises(CheckpointError, match=rf"{PARTS[1]}: the manifest has .* of another part"):
        saved.restore()


@pytest.mark.parametrize("kind", ["encrypted", "both"])
def test_a_wrong_key_is_the_mistake_of_the_job_and_no_damage(saved_as, kind, tmp_path):
    saved = saved_as(kind)
    other = encryption_key(tmp_path / "other.key")
    files = {**saved.files, "encrypt": other}
    with pytest.raises(
        JobError,
        match=rf"{PARTS[0]} is encrypted with key \w{{16}}, and {re.escape(str(other))} holds key "
        r"\w{16}; name the file of the first one: checkpoint.encrypt",
    ):
        saved.restore(seal_of(**files))
    with pytest.raises(JobError, match=r"is encrypted with key .*; name its file: checkpoint\.enc"):
        saved.restore(seal_of(**{**saved.files, "encrypt": None}))
    assert torch.equal(saved.restore(), state_of(LAYOUT, seed=10))
