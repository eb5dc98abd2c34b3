"""Claims on this host, between real processes."""

import json
import signal
import subprocess
import sys
from contextlib import closing

import pytest

from holdfast.core.placement.shares import Needs, Supply
from holdfast.rundir.claims import HeldClaim, claims_here

SUPPLY = Supply(
    cpus=(0, 1, 2, 3), max_cpus=4, gpus=("0", "1"), memory_bytes=8 << 30, available_bytes=8 << 30
)
TWO = Needs(workers=2, cpus=1, gpus=0, memory_bytes=0)
FOUR = Needs(workers=2, cpus=2, gpus=1, memory_bytes=0)
HOLDER = """
import sys
from holdfast.core.placement.shares import Needs, Supply
from holdfast.rundir.claims import HeldClaim
claim = HeldClaim("other", Needs(workers=1, cpus=3, gpus=0, memory_bytes=0))
claim.begin(Supply(cpus=(0, 1, 2, 3), max_cpus=4, gpus=(), memory_bytes=1, available_bytes=1))
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "holdfast" / "claims"


def test_claims_are_disjoint_and_released(folder):
    with closing(HeldClaim("a", TWO)) as first, closing(HeldClaim("b", FOUR)) as second:
        assert first.begin_if_free(SUPPLY, in_turn=False) == ""
        assert [share.cpus for share in first.shares] == [(0,), (1,)]
        lacking = second.begin_if_free(SUPPLY, in_turn=False)
        pid = claims_here()[0].pid
        assert lacking == f"2 CPUs for each of 2 workers; 2 of 4 are free: run a (pid {pid}) has 2"
        first.close()
        assert second.begin_if_free(SUPPLY, in_turn=False) == ""
        assert [share.gpus for share in second.shares] == [("0",), ("1",)]
    assert list(folder.glob("*/*.json")) == []


def test_those_that_wait_begin_in_turn():
    with (
        closing(HeldClaim("a", FOUR)) as running,
        closing(HeldClaim("b", FOUR)) as older,
        closing(HeldClaim("c", TWO)) as newer,
    ):
        running.begin(SUPPLY)
        assert older.begin_if_free(SUPPLY, in_turn=True).startswith("2 CPUs")
        running.close()
        assert newer.begin_if_free(SUPPLY, in_turn=True).startswith("its turn: run b (pid ")
        assert older.begin_if_free(SUPPLY, in_turn=True) == ""
        assert newer.begin_if_free(SUPPLY, in_turn=True).startswith("1 CPU for each")
        older.close()
        assert newer.begin_if_free(SUPPLY, in_turn=True) == ""


@pytest.mark.slow
def test_a_killed_holder_frees_its_claim(folder):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", HOLDER], **pipes) as holder:
        assert holder.stdout.readline() == b"held\n"
        with closing(HeldClaim("mine", TWO)) as claim:
            said = claim.begin_if_free(SUPPLY, in_turn=False)
            assert said.endswith(f"1 of 4 is free: run other (pid {holder.pid}) has 3")
            holder.send_signal(signal.SIGKILL)
            holder.wait()
            assert claim.begin_if_free(SUPPLY, in_turn=False) == ""
        assert list(folder.glob("*/*.json")) == []


def test_what_is_no_claim_is_ignored(folder):
    with closing(HeldClaim("a", TWO)) as claim:
        claim.begin(SUPPLY)
        (path,) = folder.glob("*/*.json")
        content = json.loads(path.read_text())
        assert content["cpus"] == [0, 1]
        path.write_text('{"cpus": "all"}')
        assert claims_here() == []
