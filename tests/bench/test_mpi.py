"""MPI takes part in the rounds of all-reduces, and ends with them."""

import json
import subprocess
import sys
import uuid
import venv

import psutil
import pytest

from conftest import wait_until
from holdfast.errors import HoldfastError
from holdfast_bench.collectives.mpi import mpi_workers, what_is_missing

pytestmark = pytest.mark.slow
MISSING = what_is_missing(sys.executable)
needs_mpi = pytest.mark.skipif(bool(MISSING), reason=MISSING)
SIZE = 5000 * 4


def bench(*options):
    command = [sys.executable, "-m", "holdfast", "bench", "collectives", "--json", *options]
    command += ["--workers", "2", "--sizes-kb", "65", "--rounds", "2"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


@pytest.fixture
def programs(monkeypatch):
    """A function: the workers of MPI of this test that live."""
    name = f"MPI_TEST_{uuid.uuid4().hex}"
    monkeypatch.setenv(name, "1")

    def living():
        return [
            process
            for process in psutil.process_iter(["cmdline", "environ"])
            if "holdfast_bench.collectives.mpi_program" in (process.info["cmdline"] or [])
            and process.info["cmdline"][0] == sys.executable  # not mpiexec
            and name in (process.info["environ"] or {})
        ]

    return living


@needs_mpi
@pytest.mark.full
def test_mpi_is_measured_beside_the_others_with_the_right_sums(programs):
    systems = ["parameter-server", "mpi", "gloo"]
    found, _ = bench("--systems", ",".join(systems), "--transports", "memory,tls")
    assert [row["system"] for row in found["rows"]] == 2 * systems
    assert found["absent"] == {}
    for row in found["rows"]:
        assert row["wrong"] == 0
        assert row["speed_of_mpi"] == 1 or row["system"] != "mpi"
        assert {"speed_of_mpi", "speed_of_gloo"} <= row.keys()
    assert programs() == []


@pytest.mark.full
def test_mpi_is_left_out_with_a_line_where_it_is_not_installed(tmp_path):
    venv.create(tmp_path, symlinks=True)
    python = str(tmp_path / "bin" / "python")
    found, told = bench("--systems", "mpi,ring", "--peers-python", python)
    (row,) = found["rows"]
    assert row["system"] == "ring"
    assert "speed_of_mpi" not in row
    reason = f"{python} has no mpi4py with Open MPI"
    assert found["absent"] == {"mpi": reason}
    assert f"mpi is left out: {reason}\n" in told


@needs_mpi
@pytest.mark.full
@pytest.mark.parametrize("in_memory", [True, False])
def test_workers_reduce_when_they_are_asked(in_memory, programs):
    with mpi_workers(sys.executable, 1, SIZE, in_memory=in_memory, timeout_s=60) as (worker,):
        assert (worker.rank, worker.num_wrong()) == (0, 0)
        assert 0 < worker.seconds(3) < 1
    assert programs() == []


@needs_mpi
@pytest.mark.full
def test_a_worker_that_is_killed_ends_the_others(programs):
    with (  # noqa: PT012  # the workers are there before one is killed
        pytest.raises(HoldfastError, match="a worker of MPI has ended"),
        mpi_workers(sys.executable, 2, SIZE, in_memory=True, timeout_s=60) as (first, _),
    ):
        programs()[1].kill()
        wait_until(lambda: len(programs()) < 2)
        first.seconds(1)
    assert programs() == []


@pytest.mark.parametrize(
    ("does", "error"),
    [
        ("exec sleep 1000", "0 of 2 workers of MPI started within 1 s"),
        ("echo no slots; exit 3", "exited with status 3; the last line printed was: no slots"),
    ],
)
def test_an_mpiexec_that_starts_nothing_is_ended(tmp_path, does, error):
    mpiexec = tmp_path / "mpiexec"
    mpiexec.write_text(f"#!/bin/sh\n{does}\n")
    mpiexec.chmod(0o755)
    python = tmp_path / "python"
    python.symlink_to(sys.executable)
    before = len(psutil.Process().children())
    with (
        pytest.raises(HoldfastError, match=error),
        mpi_workers(str(python), 2, SIZE, in_memory=True, timeout_s=1),
    ):
        pytest.fail("there are no workers")
    assert len(psutil.Process().children()) == before
