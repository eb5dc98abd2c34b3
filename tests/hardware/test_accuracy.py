"""Rates compared with those of well-known programs: torch.utils.benchmark, and fio.

Both measure in turn, so that a busy machine is slow for both; of disks the medians count.
"""

import json
import shutil
import statistics
import subprocess

import pytest
import torch
from torch.utils.benchmark import Timer

from holdfast.hardware import rates
from holdfast.hardware.host import measure_disk

pytestmark = [pytest.mark.slow, pytest.mark.soak]

ROUNDS, WITHIN, LIMIT_S = 40, 0.1, 0.05
DISK_ROUNDS = 11


def ratio_of_best(ours, theirs):
    """Our best rate in terms of theirs, measured in turn: other processes only make one slower."""
    rates_of_both = [(ours(), theirs()) for _ in range(ROUNDS)]
    best, their_best = map(max, zip(*rates_of_both, strict=True))
    return best / their_best


@pytest.fixture(autouse=True)
def one_thread():
    """Threads that wait for each other would measure what else the machine does."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def best_of(statement, **names):
    """Seconds of a statement in the best of some short rounds, by torch."""
    timer = Timer(statement, globals=names, num_threads=torch.get_num_threads())
    once_s = timer.timeit(1).mean
    calls = max(1, int(rates.ROUND_S / once_s))
    rounds = max(rates.MIN_ROUNDS, int(LIMIT_S / (calls * once_s)))
    return min(timer.timeit(calls).mean for _ in range(rounds))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_products_are_as_fast_as_torch_says(precision):
    cpu, side = torch.device("cpu"), rates.SIDE["cpu"]
    left, right = (torch.randn(side, side).to(rates.DTYPES[precision]) for _ in range(2))

    def theirs():
        names = {"torch": torch, "a": left, "b": right, "c": torch.empty_like(left)}
        return 2e-12 * side**3 / best_of("torch.mm(a, b, out=c)", **names)

    ratio = ratio_of_best(lambda: rates.tflops(cpu, precision, LIMIT_S).rate, theirs)
    assert ratio == pytest.approx(1, abs=WITHIN)


def test_copies_are_as_fast_as_torch_says():
    cpu, source = torch.device("cpu"), torch.ones(rates.COPY_BYTES // 4)
    target = torch.empty_like(source)

    def theirs():
        return 2 * rates.COPY_BYTES / best_of("b.copy_(a)", a=source, b=target)

    ratio = ratio_of_best(lambda: rates.copy_bytes_per_s(cpu, LIMIT_S, 1 << 40).rate, theirs)
    assert ratio == pytest.approx(1, abs=WITHIN)


@pytest.mark.skipif(shutil.which("fio") is None, reason="needs fio")
def test_the_disk_is_as_fast_as_fio_says(tmp_path):
    ours, theirs = [], []
    for _ in range(DISK_ROUNDS):
        disk = measure_disk(tmp_path)
        ours.append((disk.write_bytes_per_s, disk.read_bytes_per_s))
        theirs.append(tuple(fio(tmp_path, way) for way in ("write", "read")))
    assert list(tmp_path.iterdir()) == []
    for way in (0, 1):
        ratio = statistics.median(each[way] for each in ours) / statistics.median(
            each[way] for each in theirs
        )
        assert ratio == pytest.approx(1, abs=WITHIN), (ours, theirs)


def fio(folder, way):
    """Bytes per second of fio, as `measure_disk` writes and reads."""
    done = subprocess.run(
        ["fio", "--name=x", f"--rw={way}", "--bs=1M", "--size=512M", "--direct=1", "--end_fsync=1",
         "--ioengine=psync", "--fallocate=none", "--filename=sample",
         "--output-format=json"],
        cwd=folder, check=True, capture_output=True, text=True,
    )  # fmt: skip
    if way == "read":
        (folder / "sample").unlink()
    return json.loads(done.stdout)["jobs"][0][way]["bw_bytes"]
