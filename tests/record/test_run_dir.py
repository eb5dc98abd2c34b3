"""The run directory is whole whenever its process is killed."""

import subprocess
import sys

import pytest

from holdfast.job import load
from holdfast.rundir.run_directory import RunDirectory, is_held

CRASHES = """
import itertools, os, resource, shutil, signal, sys
from pathlib import Path
from holdfast.job import load
from holdfast.rundir.run_directory import RunDirectory

here = Path(sys.argv[1])
before, after = (load.load("digits", [f"workers={count}"]).resolved() for count in (2, 3))
with RunDirectory(here / "whole", before, resume=False):
    pass

def die_at_doing(number):
    counted = itertools.count()
    def hook(event, arguments):
        if any(str(here) in str(argument) for argument in arguments) and next(counted) == number:
            os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(hook)

def die_in_writing(size_bytes):
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, size_bytes))

def crash(die, at):
    path = here / f"{die.__name__}-{at}"
    shutil.copytree(here / "whole", path)
    pid = os.fork()
    if pid == 0:
        die(at)
        RunDirectory(path, after, resume=True)
        os._exit(0)
    killed = os.WIFSIGNALED(os.waitpid(pid, 0)[1])
    assert load.of_run(path) in (before, after)
    with RunDirectory(path, before, resume=True):
        assert load.of_run(path) == before
    assert not list(path.rglob("*.tmp"))
    return killed

deaths = next(number for number in itertools.count() if not crash(die_at_doing, number))
assert all(crash(die_in_writing, size_bytes) for size_bytes in (0, 1, 200))
print(deaths)
"""


def test_a_directory_is_held_as_long_as_its_run_lasts(tmp_path):
    assert not is_held(tmp_path / "run")
    with RunDirectory(tmp_path / "run", load.check({}, where="test"), resume=False):
        assert is_held(tmp_path / "run")
    assert not is_held(tmp_path / "run")


@pytest.mark.slow
def test_a_start_that_is_killed_anywhere_leaves_one_job_or_the_other_whole(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", CRASHES, tmp_path], capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    assert int(done.stdout) > 5
