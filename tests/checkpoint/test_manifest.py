"""What a manifest says of a checkpoint, and that nothing in it can be changed unnoticed."""

import json

import pytest
from pydantic import ValidationError

from checkpoints import header_of, layout_of, save, state_of, store_in
from holdfast.checkpoint import parts
from holdfast.checkpoint.manifest import Best, Encryption, Manifest, Parent, PartFile, Signature
from holdfast.core.step.loss_scale import LossScale
from holdfast.errors import CheckpointError

LAYOUT = layout_of(width=4)
SIGNATURE = Signature(key="0" * 64, value="0" * 128)


@pytest.fixture(scope="module", autouse=True)
def _small_chunks():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, "CHUNK_BYTES", 1 << 12)
        yield


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    fields = {"weights_config": {"seed": 0, "batch": 8}, "state": {"b": 1, "a": 2}}
    root = tmp_path_factory.mktemp("checkpoints")
    directory = save(root, 10, state_of(LAYOUT), LAYOUT, **fields)
    return store_in(root).manifest(directory.name)


def text_of(manifest):
    return manifest.sealed().model_dump_json().encode()


def test_nothing_is_claimed_that_was_not_given():
    header = header_of(LAYOUT, 10)
    assert not header.evaluates
    assert (header.best, header.best.kept_step) == (Best(value=None, step=0, since=0), None)
    assert (header.user_state, header.loss_scale, header.hugging_face) == ({}, None, None)
    assert (header.costs, header.numerics, header.numerics_changes) == ((), {}, ())


def test_retention_keeps_the_step_of_the_best_value():
    assert Best(value=0.0, step=7).kept_step == 7
    assert Best(value=-1.5, step=0, since=3).kept_step == 0
    assert Best(step=7).kept_step is None


def test_a_record_does_not_change_and_has_no_other_fields(manifest):
    for record, name in ((manifest, "step"), (manifest.parts[0], "file"), (Best(), "step")):
        with pytest.raises(ValidationError, match="frozen"):
            setattr(record, name, getattr(record, name))
    with pytest.raises(ValidationError, match="newer_field"):
        Best(newer_field=1)


def test_a_part_knows_its_chunks_and_the_digests_of_what_is_stored():
    plain = PartFile(file="f", size_bytes=9, first_chunk=3, digests=("a", "b"))
    sealed = Encryption(key="0" * 32, data_key="0" * 120, tags=("t", "u"), digests=("c", "d"))
    assert plain.chunks == range(3, 5)
    assert plain.stored_digests == ("a", "b")
    assert plain.model_copy(update={"encryption": sealed}).stored_digests == ("c", "d")


def test_a_manifest_is_read_as_it_was_written(manifest):
    assert Manifest.parse(text_of(manifest), "here") == manifest
    assert manifest.layout == LAYOUT
    assert manifest.sealed() == manifest, "its digest is not part of itself"


def test_the_order_and_the_spaces_in_a_file_do_not_matter(manifest):
    plain = json.loads(text_of(manifest))
    turned = {
        key: dict(reversed(value.items())) if isinstance(value, dict) else value
        for key, value in reversed(plain.items())
    }
    assert json.dumps(turned) != json.dumps(plain)
    assert Manifest.parse(json.dumps(turned, indent=1).encode(), "here") == manifest


CHANGES = {
    "step": 11, "generation": 2, "loss": 0.5, "evaluates": True, "metrics": {"accuracy": 1.0},
    "best": Best(step=1), "parent": Parent(name="step-00000001", root="0" * 32),
}  # fmt: skip
RESTORED = {
    "state": {"a": 2, "b": 3}, "user_state": {"name": 1}, "root": "0" * 32,
    "loss_scale": LossScale(),
}  # fmt: skip


@pytest.mark.parametrize("name", [*CHANGES, *RESTORED])
def test_a_changed_field_is_noticed(manifest, name):
    changed = manifest.model_copy(update={name: (CHANGES | RESTORED)[name]})
    with pytest.raises(CheckpointError, match=r"^here does not match its own digest$"):
        Manifest.parse(changed.model_dump_json().encode(), "here")
    assert changed.sealed().sha256 != manifest.sha256
    assert (changed.content_sha256 != manifest.content_sha256) == (name in RESTORED)


def test_a_signature_is_of_the_digest_and_not_in_it(manifest):
    signed = manifest.model_copy(update={"signature": SIGNATURE})
    assert signed.sealed().sha256 == manifest.sha256
    assert Manifest.parse(text_of(signed), "here").signature == SIGNATURE


def test_an_unknown_dtype_is_named(manifest):
    tensors = (manifest.tensors[0].model_copy(update={"dtype": "F8"}), *manifest.tensors[1:])
    odd = manifest.model_copy(update={"tensors": tensors})
    with pytest.raises(CheckpointError, match="here has a tensor of dtype 'F8'"):
        Manifest.parse(text_of(odd), "here")


@pytest.mark.parametrize("at", [0, -1])
def test_every_digest_has_the_form_of_its_kind(manifest, at):
    """Bytes are written as digits in one way, so that there is one name for them."""
    held = list(manifest.parts)
    digests = [*held[at].digests]
    digests[at] = digests[at].upper()
    held[at] = held[at].model_copy(update={"digests": tuple(digests)})
    chunks = [digest for each in held for digest in each.digests]
    root = parts.root(chunks, manifest.digest_kind)
    altered = manifest.model_copy(update={"parts": tuple(held), "root": root})
    assert chunks != [digest for each in manifest.parts for digest in each.digests]
    with pytest.raises(CheckpointError, match="here: the digests do not match their root"):
        Manifest.parse(text_of(altered), "here")


KEY = {"key": "0" * 32, "data_key": "0" * 120}
TAG, DIGEST = "a" * 32, "b" * 32


@pytest.mark.parametrize(
    ("tags", "digests", "reason"),
    [
        ([TAG, TAG], [DIGEST, DIGEST], None),
        ([TAG], [DIGEST, DIGEST], "2 chunks without a tag for each"),
        ([TAG, TAG, TAG], [DIGEST, DIGEST], "2 chunks without a tag for each"),
        ([TAG, TAG], [DIGEST], "2 chunks without a tag for each"),
        ([TAG], [DIGEST], "2 chunks without a tag for each"),
        ([TAG, "a" * 31], [DIGEST, DIGEST], "2 chunks without a tag for each"),
        (["a" * 33, TAG], [DIGEST, DIGEST], "2 chunks without a tag for each"),
        ([TAG, TAG], [DIGEST, "b" * 31], "a digest that is none"),
        ([TAG, TAG], ["B" * 32, DIGEST], "a digest that is none"),
    ],
)
def test_each_encrypted_chunk_has_a_tag_and_a_digest(manifest, tags, digests, reason):
    held = manifest.parts[-1]
    sealed = Encryption(**KEY, tags=tuple(tags), digests=tuple(digests))
    part = held.model_copy(update={"encryption": sealed})
    text = text_of(manifest.model_copy(update={"parts": (*manifest.parts[:-1], part)}))
    if reason is None:
        assert Manifest.parse(text, "here").parts[-1].stored_digests == (DIGEST, DIGEST)
    else:
        with pytest.raises(CheckpointError, match=f"here: {held.file} has {reason}"):
            Manifest.parse(text, "here")


@pytest.mark.parametrize(
    "file",
    [
        "part-0-of-1.safetensors\n",
        "part-0-of-1",
        "part-0123456789-of-1.safetensors",
        "a/part-0-of-1",
    ],
)
def test_a_part_with_an_odd_name_is_refused(manifest, file):
    first, *others = manifest.parts
    odd = first.model_copy(update={"file": file})
    renamed = manifest.model_copy(update={"parts": (odd, *others)})
    with pytest.raises(CheckpointError, match="here names a part"):
        Manifest.parse(text_of(renamed), "here")
