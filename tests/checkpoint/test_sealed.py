"""Sealed checkpoints: the same state and root, files of the same size, and no plain bytes."""

import json
from itertools import product

import pytest
import torch
from safetensors import safe_open

from checkpoints import bytes_of, layout_of, restore, save, state_of, store_in, write
from conftest import change_last_byte
from holdfast.checkpoint import parts
from holdfast.checkpoint.exports import weights
from holdfast.checkpoint.exports.export import export
from holdfast.checkpoint.reader import read_part
from holdfast.checkpoint.retention import Retention
from holdfast.checkpoint.store import MANIFEST
from holdfast.checkpoint.transfer import described, pieces, receive
from holdfast.core.checkpoints.retention import RetentionPolicy
from holdfast.errors import JobError
from holdfast.job import JOB_FILE, load
from keys import encryption_key, seal_of, signing_key

LAYOUT = layout_of(width=50)
STATE = state_of(LAYOUT)
CHUNK = 1 << 16


@pytest.fixture(scope="module", autouse=True)
def _small_chunks():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, "CHUNK_BYTES", CHUNK)
        yield


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The files of two keys, by job key."""
    folder = tmp_path_factory.mktemp("keys")
    return {"sign": signing_key(folder / "sign"), "encrypt": encryption_key(folder / "encrypt")}


def seal(files, *names):
    return seal_of(**{name: files[name] for name in names})


def manifest(directory):
    return store_in(directory.parent).manifest(directory.name)


def test_the_root_depends_on_the_state_and_the_kind_of_digests_only(tmp_path, files):
    roots = {"xxh3-128": set(), "blake3": set()}
    kinds = [(), ("encrypt",), ("sign",), ("sign", "encrypt")]
    for number, (names, world) in enumerate(product(kinds, (1, 2, 3))):
        directory = save(
            tmp_path / str(number), 7, STATE, LAYOUT, world=world, seal=seal(files, *names)
        )
        found = manifest(directory)
        assert found.digest_kind == ("blake3" if "sign" in names else "xxh3-128")
        roots[found.digest_kind].add((found.root, found.content_sha256))
        assert torch.equal(restore(directory, LAYOUT, seal(files, *names)), STATE)
    assert [len(found) for found in roots.values()] == [1, 1]
    assert roots["xxh3-128"] != roots["blake3"]


def test_ciphertext_takes_the_place_of_the_state(tmp_path, files):
    plain = save(tmp_path / "plain", 7, STATE, LAYOUT)
    sealed = save(tmp_path / "sealed", 7, STATE, LAYOUT, seal=seal(files, "encrypt"))
    for path in plain.glob("*.safetensors"):
        one, other = path.read_bytes(), (sealed / path.name).read_bytes()
        at = 8 + int.from_bytes(one[:8], "little")
        assert len(one) == len(other)
        assert one[:at] == other[:at]
        same = sum(a == b for a, b in zip(one[at:], other[at:], strict=True))
        assert same < len(one[at:]) / 100  # one in 256 by chance
        with safe_open(sealed / path.name, "pt") as file:  # names and shapes are plain
            assert list(file.keys())
    assert files["encrypt"].read_text().strip() not in (sealed / MANIFEST).read_text()


def test_no_data_key_and_no_ciphertext_is_used_twice(tmp_path, files):
    zeros = torch.zeros_like(STATE)  # equal chunks
    written = [
        part
        for root in ("one", "other")
        for part in write(tmp_path / root, 7, zeros, LAYOUT, seal=seal(files, "encrypt"))
    ]
    assert len({part.encryption.data_key for part in written}) == 4
    for each in ("tags", "digests"):
        values = [value for part in written for value in getattr(part.encryption, each)]
        assert len(set(values)) == len(values) == 8
    assert len({digest for part in written for digest in part.digests[:1]}) == 1


def test_stored_bytes_are_verified_and_sent_without_a_key(tmp_path, files):
    sealed = seal(files, "sign", "encrypt")
    save(tmp_path / "source", 7, STATE, LAYOUT, seal=sealed)
    source, target = store_in(tmp_path / "source"), store_in(tmp_path / "target")
    wanted = described(source.manifest("step-00000007"))
    assert receive(target, "0b", pieces(source, wanted), wanted) == "step-00000007"
    assert torch.equal(restore(tmp_path / "target" / "step-00000007", LAYOUT, sealed), STATE)
    stream = list(pieces(source, wanted))
    stream[1] = bytes([stream[1][0] ^ 1]) + stream[1][1:]
    with pytest.raises(Exception, match="chunk 0 does not match its digest"):
        receive(store_in(tmp_path / "third"), "0b", iter(stream), wanted)


def test_retention_verifies_without_a_key(tmp_path, files):
    for step in (1, 2, 3):
        save(tmp_path, step, STATE, LAYOUT, seal=seal(files, "encrypt"))
    part = tmp_path / "step-00000003" / "part-1-of-2.safetensors"
    change_last_byte(part)
    found = []
    with Retention(store_in(tmp_path), RetentionPolicy(last=1), found.append) as retention:
        retention.request()
    assert store_in(tmp_path).committed() == ["step-00000002"]
    assert [(each.step, each.file) for each in found] == [(3, part.name)]


def test_a_part_that_is_read_as_it_is_stored_is_ciphertext(tmp_path, files):
    directory = save(tmp_path, 7, STATE, LAYOUT, world=1, seal=seal(files, "encrypt"))
    found, scratch = manifest(directory), memoryview(bytearray(CHUNK))
    storage = store_in(tmp_path).storage
    chunks = read_part(
        storage, directory.name, found, found.parts[0], lambda a, b: scratch[: b - a]
    )
    for start, end in chunks:
        assert scratch[: end - start] != bytes_of(STATE)[start:end]


def test_weights_are_read_with_the_key_of_the_job_or_a_given_one(tmp_path, files):
    plain = save(tmp_path / "plain" / "checkpoints", 7, STATE, LAYOUT)
    run = tmp_path / "run"
    sealed = save(run / "checkpoints", 7, STATE, LAYOUT, seal=seal(files, "encrypt"))
    wanted = weights.digest(weights.read_checkpoint(plain))
    with pytest.raises(JobError, match=r"is encrypted with key .*--key-file of holdfast export"):
        weights.read_checkpoint(sealed)
    export(sealed, tmp_path / "model.safetensors", key=files["encrypt"])
    assert weights.digest(weights.load_weights(tmp_path / "model.safetensors")) == wanted
    keys = {"data": {"name": "digits"}, "checkpoint": {"encrypt": str(files["encrypt"])}}
    (run / JOB_FILE).write_text(load.dump(load.check(keys, where="test")))
    assert weights.digest(weights.load_weights(run)) == wanted


def test_where_a_checkpoint_comes_from_is_not_part_of_its_content(tmp_path):
    one, other = (manifest(save(tmp_path / name, 7, STATE, LAYOUT)) for name in ("one", "other"))
    assert one.origin.at < other.origin.at
    assert one.origin.at.endswith("+00:00")
    assert one.sha256 != other.sha256
    assert (one.root, one.content_sha256) == (other.root, other.content_sha256)
    assert json.loads((tmp_path / "one" / "step-00000007" / MANIFEST).read_text())["origin"]["host"]
