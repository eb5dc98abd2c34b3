"""A base is built once, mapped read-only, and verified."""

import multiprocessing
import os

import pytest
import torch

from holdfast.arena.base_cache import cached_base
from holdfast.arena.frozen_base import NUM_SLICES, TENSORS
from holdfast.errors import JobError

TENSOR = torch.arange(100_000, dtype=torch.float32)


def build():
    yield "a", TENSOR
    yield "scales.b", torch.tensor(3, dtype=torch.uint8)
    yield "c", TENSOR.view(1000, 100).bfloat16()


def base_in(folder, builder=build, **key):
    return cached_base(folder, "net", key, builder)


def never():
    raise AssertionError("it was built again")
    yield


def test_what_is_built_is_mapped(tmp_path):
    base = base_in(tmp_path)
    for name, tensor in build():
        assert torch.equal(base.tensors[name], tensor)
        assert base.tensors[name].dtype == tensor.dtype
        assert base.holds(base.tensors[name])
    assert not base.holds(TENSOR)
    assert base.tensors["c"].data_ptr() % 64 == 0
    again = base_in(tmp_path, never)
    assert again.digest == base.digest
    assert base_in(tmp_path / "other").digest == base.digest  # the place does not matter


def test_another_key_or_content_is_another_base(tmp_path):
    digests = {
        base_in(tmp_path, seed=1).digest,
        base_in(tmp_path, lambda: [("a", TENSOR + 1)], seed=2).digest,
        base_in(tmp_path, lambda: [("b", TENSOR + 1)], seed=3).digest,
    }
    assert len(digests) == 3


def test_sums_in_a_base_do_not_depend_on_the_threads_of_the_process(tmp_path):
    values = torch.randn(1 << 20, generator=torch.Generator().manual_seed(0)).exp()
    before, digests = torch.get_num_threads(), set()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            place = tmp_path / str(threads)
            digests.add(base_in(place, lambda: [("sum", values.sum())]).digest)
    finally:
        torch.set_num_threads(before)
    assert len(digests) == 1


def test_a_damaged_base_is_built_again(tmp_path):
    base = base_in(tmp_path)
    path = base.folder / TENSORS
    content = bytearray(path.read_bytes())
    content[12_345] ^= 1
    path.write_bytes(content)
    assert not all(map(base.is_intact, range(NUM_SLICES)))  # the mapping is shared with the file
    assert torch.equal(base_in(tmp_path).tensors["a"], TENSOR)
    path.write_bytes(content[:-64])
    assert torch.equal(base_in(tmp_path).tensors["a"], TENSOR)


def test_every_byte_belongs_to_a_slice(tmp_path):
    base = base_in(tmp_path)
    size = (base.folder / TENSORS).stat().st_size
    for at in (0, 63, 64, size // 2, size - 64):
        with (base.folder / TENSORS).open("r+b") as file:
            file.seek(at)
            byte = file.read(1)
            file.seek(at)
            file.write(bytes([byte[0] ^ 4]))
            file.flush()
            assert sum(not base.is_intact(number) for number in range(NUM_SLICES)) == 1
            file.seek(at)
            file.write(byte)
    assert all(map(base.is_intact, range(NUM_SLICES)))


@pytest.mark.parametrize(
    ("builder", "says"),
    [
        (list, "there is no tensor; yield"),
        (lambda: [("a", TENSOR), ("a", TENSOR)], "two tensors are called a"),
        (lambda: [("a", TENSOR.to(torch.complex128))], "dtype torch.complex128"),
        (lambda: 1 / 0, "ZeroDivisionError"),
        (lambda: os._exit(7), "its process ended with 7"),
        (lambda: os.kill(os.getpid(), 9), "too little memory"),
    ],
    ids=["none", "twice", "dtype", "raises", "exits", "killed"],
)
def test_what_cannot_be_built_is_said(tmp_path, builder, says):
    with pytest.raises(JobError, match=says):
        base_in(tmp_path, builder)
    assert torch.equal(base_in(tmp_path).tensors["a"], TENSOR)  # nothing is left in the way


def test_a_full_disk_is_said(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(JobError, match=r"base net, .*: Not a directory; fix that"):
        base_in(tmp_path / "file" / "below")


def _build_and_report(folder, queue):
    def counted():
        queue.put("built")
        yield from build()

    queue.put(cached_base(folder, "net", {}, counted).digest)


@pytest.mark.slow
def test_of_several_builders_one_builds(tmp_path):
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    processes = [
        context.Process(target=_build_and_report, args=(tmp_path, queue)) for _ in range(3)
    ]
    for process in processes:
        process.start()
    found = [queue.get(timeout=60) for _ in range(4)]
    for process in processes:
        process.join(60)
    assert found.count("built") == 1
    assert len(set(found)) == 2
