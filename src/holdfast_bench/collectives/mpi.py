"""MPI: the all-reduce of Open MPI, by workers that mpiexec starts and that take part in the rounds.

Worker i of MPI is connected to member i of a measurement, which tells it when to begin and waits
for it. So MPI takes turns with the systems that run in the members themselves.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

from holdfast.errors import HoldfastError, JobError
from holdfast_bench.launch import PeerLaunch, ProcessSpec
from holdfast_bench.peers.systems import IMPORTABLE, ONE_THREAD

NAME: Final = "mpi"
OPTIONS: Final = ("--allow-run-as-root", "--oversubscribe")
OVER_TCP: Final = (
    *("--mca", "pml", "ob1", "--mca", "btl", "tcp,self"),
    *("--mca", "btl_tcp_if_include", "lo"),
)
"""Options of mpiexec: loopback in place of shared memory."""
_FIND: Final = (
    "import mpi4py\n"
    "mpi4py.rc.initialize = False\n"
    "from mpi4py import MPI\n"
    "print(MPI.Get_library_version())"
)


def what_is_missing(python: str) -> str:
    """Reason why an interpreter cannot measure MPI; empty if it can.

    Raises:
        JobError: It is no interpreter.
    """
    try:
        found = subprocess.run(
            [python, "-c", _FIND], check=False, capture_output=True, text=True, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise JobError(f"--peers-python {python} does not run: {error}") from None
    if "Open MPI" not in found.stdout:
        return f"{python} has no mpi4py with Open MPI"
    return "" if _mpiexec(python) else f"there is no mpiexec next to {python}, nor in PATH"


@contextmanager
def mpi_workers(
    python: str, workers: int, size: int, *, in_memory: bool, timeout_s: float
) -> Iterator[list[MpiWorker]]:
    """Start workers of MPI, and end them.

    Args:
        python: Their interpreter; see `what_is_missing`.
        workers: How many.
        size: Size of the vector, bytes.
        in_memory: True if they share memory; False if they are connected over loopback.
        timeout_s: Limit of each wait, seconds.

    Yields:
        The workers by rank.

    Raises:
        HoldfastError: They did not start in time, or mpiexec has failed.
    """
    with ExitStack() as owned:
        # What Open MPI keeps in files goes with this folder, also if its processes are killed.
        folder = Path(owned.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm")))
        listener = owned.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(str(folder / "bench"))
        listener.listen(workers)
        listener.setblocking(False)
        command = [
            _mpiexec(python) or "mpiexec",
            *OPTIONS,
            *("--mca", "btl_sm_backing_directory", str(folder)),
            *(() if in_memory else OVER_TCP),
            *("-n", str(workers), python, "-m", "holdfast_bench.collectives.mpi_program"),
            *(str(folder / "bench"), str(size)),
        ]
        environment = {**IMPORTABLE, **ONE_THREAD, "TMPDIR": str(folder)}
        spec = ProcessSpec(arguments=command, environment=environment)
        launch = owned.enter_context(PeerLaunch([spec], folder))
        with ExitStack() as connected:
            found: list[MpiWorker] = []

            def are_there() -> bool:
                with suppress(BlockingIOError):
                    worker = MpiWorker(listener.accept()[0], timeout_s)
                    connected.callback(worker.close)
                    found.append(worker)
                return len(found) == workers

            if not launch.wait(are_there, timeout_s):
                raise HoldfastError(
                    f"{len(found)} of {workers} workers of MPI started within {timeout_s:.0f} s; "
                    f"the last line printed was: {launch.last_line()}"
                )
            yield sorted(found, key=lambda worker: worker.rank)
        launch.join(timeout_s)  # they end with their connections


class MpiWorker:
    """One worker of MPI, asked over its connection.

    Args:
        connection: The connection; its first line is the rank.
        timeout_s: Limit of each wait, seconds.

    Attributes:
        rank: Its rank.
    """

    def __init__(self, connection: socket.socket, timeout_s: float) -> None:
        connection.settimeout(timeout_s)
        self._connection = connection
        self._lines = connection.makefile()
        self.rank = int(self._answer())

    def num_wrong(self) -> int:
        """Reduce once; returns how many elements of the worker are not the sum."""
        return int(self._ask("wrong"))

    def seconds(self, loops: int) -> float:
        """Time of one all-reduce, the mean of several."""
        return float(self._ask(str(loops)))

    def close(self) -> None:
        """Close the connection, with which the worker ends."""
        self._lines.close()
        self._connection.close()

    def _ask(self, word: str) -> str:
        self._connection.sendall(f"{word}\n".encode())
        return self._answer()

    def _answer(self) -> str:
        line = self._lines.readline()
        if not line:
            raise HoldfastError("a worker of MPI has ended; see whether it was killed")
        return line


def _mpiexec(python: str) -> str | None:
    """The mpiexec of an interpreter's environment, or else that of PATH."""
    folder = Path(shutil.which(python) or python).parent
    return shutil.which("mpiexec", path=str(folder)) or shutil.which("mpiexec")
