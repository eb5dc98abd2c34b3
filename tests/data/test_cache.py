"""The mapped cache: built once, by one process, and verified before it is used."""

import fcntl
import os
import random
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from holdfast.data.cache import cached
from holdfast.data.catalog import build
from holdfast.data.images import Samples, Scale
from holdfast.data.source import SampleSource
from holdfast.errors import JobError
from holdfast.job.data import ImageFolder


def noise(count, seed):
    return np.random.default_rng(seed).integers(256, size=(count, 3, 4, 4), dtype=np.uint8)


@pytest.fixture
def pictures(tmp_path):
    for number, image in enumerate(noise(20, 0)):
        path = tmp_path / "pictures" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image.transpose(1, 2, 0)).save(path)
    return tmp_path / "pictures"


def folder(path, cache):
    return build(ImageFolder(name="image-folder", path=path, height=4, augment=False, cache=cache))


def content(splits):
    parts = (splits.training, splits.test)
    batches = [part.batch(np.arange(len(part)), torch.Generator()) for part in parts]
    return [part.fingerprint for part in parts], batches


def assert_same(left, right):
    (prints, batches), (prints2, batches2) = content(left), content(right)
    assert prints == prints2
    for (x, y), (x2, y2) in zip(batches, batches2, strict=True):
        assert torch.equal(x, x2)
        assert torch.equal(y, y2)


def test_a_cache_has_the_samples_of_its_files(pictures, tmp_path):
    plain = folder(pictures, None)
    assert_same(folder(pictures, tmp_path / "cache"), plain)
    assert_same(folder(pictures, tmp_path / "cache"), plain)


def files_of(cache):
    return sorted(path for path in cache.glob("*/*") if path.is_file())


def inodes(cache):
    return [path.stat().st_ino for path in files_of(cache) if path.name != "verified"]


def test_a_cache_is_built_once_and_again_when_a_file_changes(pictures, tmp_path):
    cache = tmp_path / "cache"
    before = folder(pictures, cache)
    built = inodes(cache)
    folder(pictures, cache)
    assert inodes(cache) == built
    Image.new("RGB", (4, 4), (1, 2, 3)).save(pictures / "a" / "0.png")
    changed = folder(pictures, cache)
    assert changed.training.fingerprint != before.training.fingerprint
    assert_same(changed, folder(pictures, None))


def test_a_link_that_moves_to_another_class_makes_another_cache(pictures, tmp_path):
    pool = tmp_path / "pool"
    pictures.rename(pool)
    for file in sorted(pool.glob("*/*.png")):
        link = pictures / file.parent.name / f"{file.parent.name}{file.stem}.png"
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(file)
    folder(pictures, tmp_path / "cache")
    (pictures / "a" / "a0.png").rename(pictures / "b" / "a0.png")
    assert_same(folder(pictures, tmp_path / "cache"), folder(pictures, None))


@pytest.mark.parametrize("seed", range(20))
def test_a_damaged_cache_is_rebuilt(pictures, tmp_path, seed):
    cache, draw = tmp_path / "cache", random.Random(seed)
    folder(pictures, cache)
    chosen = draw.choice(files_of(cache))
    data = bytearray(chosen.read_bytes())
    match seed % 4:
        case 0:
            del data[draw.randrange(len(data)) :]
        case 1:
            data += b"\0"
        case 2 | 3:
            data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    before = chosen.stat().st_ctime_ns
    while chosen.stat().st_ctime_ns == before:  # the clock of the file system is a coarse one
        chosen.write_bytes(data)
    assert_same(folder(pictures, cache), folder(pictures, None))


@pytest.mark.parametrize("number", range(4))
def test_a_cache_without_one_of_its_files_is_rebuilt(pictures, tmp_path, number):
    cache = tmp_path / "cache"
    folder(pictures, cache)
    names = [path.name for path in files_of(cache)]
    files_of(cache)[number % len(names)].unlink()
    assert_same(folder(pictures, cache), folder(pictures, None))
    assert [path.name for path in files_of(cache)] == names


def test_a_source_that_cannot_be_read_leaves_no_cache(pictures, tmp_path):
    (pictures / "b" / "19.png").write_bytes(b"nothing")
    with pytest.raises(JobError, match=r"19\.png is damaged"):
        folder(pictures, tmp_path / "cache")
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".lock"]


def test_a_directory_that_cannot_be_written_is_named(pictures):
    with pytest.raises(JobError, match=r"data\.cache /proc/nowhere: .*; fix that, or set"):
        folder(pictures, "/proc/nowhere")


def source_of(x, y):
    return SampleSource(files=(), blocks=lambda: iter([(x, y)]))


def measure(samples):
    return Scale.of(samples["training"].x, np.arange(len(samples["training"].y)))


def test_a_lock_that_is_never_released_ends_the_wait(tmp_path, monkeypatch):
    monkeypatch.setattr("holdfast.data.cache.WAIT_S", 0.0)
    sources = {"training": source_of(noise(2, 0), np.arange(2))}
    cached(tmp_path, "mine", {}, sources, measure)
    [lock] = tmp_path.glob("*.lock")
    with lock.open() as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        with pytest.raises(JobError, match=r"another process has held .*\.lock for 0 s"):
            cached(tmp_path, "mine", {}, sources, measure)
    cached(tmp_path, "mine", {}, sources, measure)


BUILD = """
import sys, os
from pathlib import Path
import numpy as np
from holdfast.data.cache import cached
from holdfast.data.images import Scale
from holdfast.data.source import SampleSource

def blocks():
    with open(sys.argv[2], "a") as log:
        log.write("built\\n")
    x = np.arange(480, dtype=np.uint8).reshape(10, 3, 4, 4)
    yield x, np.arange(10)
    if sys.argv[3] == "die":
        print("half", flush=True)
        sys.stdin.read()
    yield x, np.arange(10)

found = cached(
    Path(sys.argv[1]), "mine", {}, {"training": SampleSource(files=(), blocks=blocks)},
    lambda samples: Scale.of(samples["training"].x, np.arange(20)),
)
print(found.samples["training"].sha256, found.samples["training"].x.flags.writeable)
"""


def start(tmp_path, how):
    arguments = [tmp_path / "cache", tmp_path / "log", how]
    return subprocess.Popen(
        [sys.executable, "-c", BUILD, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.soak
@pytest.mark.slow
def test_of_racing_processes_one_builds_and_all_map_the_same_files(tmp_path):
    racers = [start(tmp_path, "live") for _ in range(4)]
    outputs = [racer.communicate(timeout=120) for racer in racers]
    assert len({out for out, _ in outputs}) == 1, outputs
    x = np.arange(480, dtype=np.uint8).reshape(10, 3, 4, 4)
    whole = Samples.of(np.concatenate([x, x]), np.concatenate([np.arange(10)] * 2))
    assert outputs[0][0].split() == [whole.sha256, "False"]
    assert (tmp_path / "log").read_text() == "built\n"


@pytest.mark.soak
@pytest.mark.slow
def test_a_process_that_dies_while_it_builds_lets_the_next_one_build(tmp_path):
    dying = start(tmp_path, "die")
    assert dying.stdout.readline() == "half\n"
    waiting = start(tmp_path, "live")
    os.kill(dying.pid, signal.SIGKILL)
    dying.communicate()
    out, err = waiting.communicate(timeout=120)
    assert waiting.returncode == 0, err
    assert (tmp_path / "log").read_text() == "built\n" * 2
    assert len(out.split()[0]) == 64
    assert not list((tmp_path / "cache").glob("*.tmp"))


FULL = """
import resource, sys
from pathlib import Path
from holdfast.data.catalog import build
from holdfast.errors import JobError
from holdfast.job.data import ImageFolder

resource.setrlimit(resource.RLIMIT_FSIZE, (500, 500))
try:
    build(ImageFolder(name="image-folder", path=sys.argv[1], height=4, cache=sys.argv[2]))
except JobError as error:
    print(error)
"""


@pytest.mark.soak
@pytest.mark.slow
def test_a_full_disk_is_reported_in_one_line_and_leaves_no_files(pictures, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", FULL, pictures, tmp_path / "cache"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "data.cache" in done.stdout
    assert "File too large; fix that, or set data.cache to another directory" in done.stdout
    assert len(done.stdout.splitlines()) == 1
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".lock"]
