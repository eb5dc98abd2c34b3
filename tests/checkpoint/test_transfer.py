"""A checkpoint goes from one store to another whole, or not at all."""

import pytest

from checkpoints import bytes_of, layout_of, restore, save, state_of, store_in
from holdfast.checkpoint.parts import CHUNK_BYTES
from holdfast.checkpoint.transfer import PIECE_BYTES, described, pieces, receive
from holdfast.errors import CheckpointError

LAYOUT = layout_of()
STATE = state_of(LAYOUT)


@pytest.fixture
def source(tmp_path):
    """A store with a checkpoint of several chunks in two parts."""
    assert LAYOUT.size_bytes > 2 * CHUNK_BYTES
    save(tmp_path / "source", 7, STATE, LAYOUT)
    return store_in(tmp_path / "source")


@pytest.fixture
def target(tmp_path):
    return store_in(tmp_path / "target")


@pytest.fixture
def checkpoint(source):
    return described(source.manifest("step-00000007"))


def test_what_arrives_is_restored_with_the_same_bytes(source, target, checkpoint, tmp_path):
    stream = list(pieces(source, checkpoint))
    assert max(map(len, stream[1:])) <= PIECE_BYTES
    assert receive(target, "0b", iter(stream), checkpoint) == "step-00000007"
    restored = restore(tmp_path / "target" / "step-00000007", LAYOUT)
    assert bytes_of(restored) == bytes_of(STATE)
    for file in (tmp_path / "source" / "step-00000007").glob("*.safetensors"):
        assert (tmp_path / "target" / "step-00000007" / file.name).read_bytes() == file.read_bytes()


def test_hosts_that_divide_a_state_otherwise_say_the_same_of_it(source, checkpoint, tmp_path):
    save(tmp_path / "other", 7, STATE, LAYOUT, world=3)
    assert described(store_in(tmp_path / "other").manifest("step-00000007")) == checkpoint
    save(tmp_path / "third", 7, state_of(LAYOUT, seed=1), LAYOUT)
    assert described(store_in(tmp_path / "third").manifest("step-00000007")) != checkpoint


def damaged(stream):
    return [*stream[:5], bytes([stream[5][0] ^ 1]) + stream[5][1:], *stream[6:]]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (damaged, "chunk 0 does not match its digest"),
        (lambda stream: stream[:-1], "ended in chunk 2"),
        (lambda stream: stream[:1], "ended in chunk 0"),
        (lambda stream: [], "is damaged"),
        (lambda stream: [*stream, b"more"], "more bytes than its manifest says"),
        (lambda stream: [stream[0], b"".join(stream[1:])], "too long a piece in chunk 0"),
        (lambda stream: [stream[0].replace(b'"step":7', b'"step":8'), *stream[1:]], "own digest"),
        (lambda stream: [stream[0].replace(b"part-0", b"../../x")], "own digest"),
    ],
)
def test_what_is_torn_or_altered_is_refused_and_leaves_nothing(
    source, target, checkpoint, change, reason
):
    with pytest.raises(CheckpointError, match=reason):
        receive(target, "0b", iter(change(list(pieces(source, checkpoint)))), checkpoint)
    assert target.storage.names() == []


def test_another_checkpoint_than_the_expected_one_is_refused(source, target, checkpoint):
    other = checkpoint.model_copy(update={"content_sha256": 64 * "0"})
    with pytest.raises(CheckpointError, match="not the checkpoint of step 7"):
        receive(target, "0b", pieces(source, checkpoint), other)
    with pytest.raises(CheckpointError, match="not the checkpoint of step 7"):
        list(pieces(source, other))


def test_a_damaged_file_is_noticed_by_its_sender(source, checkpoint, tmp_path):
    part = tmp_path / "source" / "step-00000007" / "part-1-of-2.safetensors"
    content = bytearray(part.read_bytes())
    content[-1] ^= 1
    part.write_bytes(content)
    with pytest.raises(CheckpointError, match="does not match its digest"):
        list(pieces(source, checkpoint))


def test_a_failing_disk_leaves_what_was_there_before(source, target, checkpoint, monkeypatch):
    receive(target, "0b", pieces(source, checkpoint), checkpoint)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(target.storage, "publish", full)
    with pytest.raises(OSError, match="No space"):
        receive(target, "0c", pieces(source, checkpoint), checkpoint)
    target.remove_partial()
    assert sorted(target.storage.names()) == ["latest", "step-00000007"]
