"""A manifest that contradicts itself is refused like any other damage, however it does so.

Its digests are made to match again, so that only the consistency of what it says can tell.
"""

import contextlib
import copy
import json

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from checkpoints import layout_of, restore, save, state_of, store_in
from holdfast.checkpoint import parts
from holdfast.checkpoint.manifest import Manifest
from holdfast.checkpoint.reader import read_state
from holdfast.checkpoint.store import MANIFEST
from holdfast.errors import CheckpointError

ODD = st.sampled_from(
    [None, -1, 0, 1, 2, 3, 1 << 31, 1 << 70, 0.5, float("nan"), "", "w", "../x", "\0", "x" * 300,
     "part-0-of-2.safetensors", "g" * 64, "ab" * 32, "F8", [], [0], [[]], {}, {"w": 1}, True]
).map(copy.deepcopy)  # fmt: skip


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    layout = layout_of()
    flat = state_of(layout)
    directory = save(tmp_path_factory.mktemp("checkpoints"), 10, flat, layout)
    return directory, flat, layout, json.loads((directory / MANIFEST).read_bytes())


def write(directory, plain, *, rooted=True):
    """Write a manifest, with digests that match it wherever it can be parsed at all."""
    text = json.dumps(plain)
    try:
        found = Manifest.model_validate_json(text)
        if rooted:
            chunks = [digest for part in found.parts for digest in part.digests]
            found = found.model_copy(update={"root": parts.root(chunks, found.digest_kind)})
        text = found.sealed().model_dump_json()
    except ValueError:
        pass
    (directory / MANIFEST).write_text(text)


def places(node, path=()):
    """The path of everything inside a JSON value."""
    inner = node.items() if isinstance(node, dict) else enumerate(node)
    for key, value in inner:
        yield (*path, key)
        if isinstance(value, dict | list):
            yield from places(value, (*path, key))


def alter(data, plain):
    """Change one place of a manifest."""
    *way, last = data.draw(st.sampled_from([*places(plain)]))
    node = plain
    for key in way:
        node = node[key]
    match data.draw(st.sampled_from(["set", "remove", "repeat", "reverse"])):
        case "set":
            node[last] = data.draw(ODD)
        case "remove":
            del node[last]
        case "repeat" if isinstance(node, list):
            node.insert(last, node[last])
        case "reverse" if isinstance(node, list):
            node.reverse()
        case _:
            node[last] = -node[last] if isinstance(node[last], int) else data.draw(ODD)


@pytest.mark.slow
@settings(
    max_examples=300,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data(), changes=st.integers(1, 3), rooted=st.booleans())
def test_an_altered_manifest_gives_the_state_or_a_checkpoint_error(saved, data, changes, rooted):
    directory, flat, layout, sound = saved
    plain = json.loads(json.dumps(sound))
    for _ in range(changes):
        alter(data, plain)
    write(directory, plain, rooted=rooted)
    with contextlib.suppress(CheckpointError):
        assert torch.equal(restore(directory, layout), flat)
    with contextlib.suppress(CheckpointError):  # as the coordinator reads it, in any layout
        store, scratch = store_in(directory.parent), memoryview(bytearray(parts.CHUNK_BYTES))
        read = store.manifest(directory.name)
        list(read_state(store, directory.name, read, lambda a, b: scratch[: b - a]))


def overlap(parts_of):
    parts_of[1]["first_chunk"] -= 1
    parts_of[1]["digests"].insert(0, parts_of[0]["digests"][-1])


def leave_a_gap(parts_of):
    parts_of[1]["first_chunk"] += 1
    parts_of[0]["digests"].append(parts_of[0]["digests"][-1])


def reach_beyond_the_end(parts_of):
    parts_of[1]["digests"].append(parts_of[1]["digests"][-1])


def fall_short_of_the_end(parts_of):
    parts_of[1]["digests"].pop()


def begin_before_the_state(parts_of):
    parts_of[0]["first_chunk"] = -1


def swap(parts_of):
    parts_of.reverse()


def name_one_file_twice(parts_of):
    parts_of[1]["file"] = parts_of[0]["file"]


def name_a_file_elsewhere(parts_of):
    parts_of[1]["file"] = "../" + parts_of[1]["file"]


def hold_no_digest(parts_of):
    parts_of[1]["digests"][0] = "not a digest"


def hold_a_digest_that_python_cannot_decode(parts_of):
    parts_of[1]["digests"][0] = "g" * 64


FAULTS = [
    overlap, leave_a_gap, reach_beyond_the_end, fall_short_of_the_end, begin_before_the_state,
    swap, name_one_file_twice, name_a_file_elsewhere, hold_no_digest,
    hold_a_digest_that_python_cannot_decode,
]  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_parts_that_do_not_cover_the_state_once_are_rejected(saved, fault):
    directory, _, _, sound = saved
    plain = json.loads(json.dumps(sound))
    fault(plain["parts"])
    write(directory, plain)
    with pytest.raises(CheckpointError, match=r"step-00000010/manifest\.json"):
        store_in(directory.parent).manifest(directory.name)


@pytest.mark.parametrize("change", ["order", "twice", "bytes"])
def test_a_layout_of_the_same_tensors_in_another_arrangement_is_rejected(saved, change):
    directory, _, layout, sound = saved
    plain = json.loads(json.dumps(sound))
    match change:
        case "order":
            plain["tensors"].reverse()
        case "twice":
            plain["tensors"].append(plain["tensors"][0])
        case "bytes":
            plain["size_bytes"] -= 64
    write(directory, plain)
    with pytest.raises(CheckpointError, match="step-00000010"):
        restore(directory, layout)
