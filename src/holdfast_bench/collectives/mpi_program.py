"""MPI program: one worker of MPI, which all-reduces when it is asked to; see `mpi`.

Its interpreter needs mpi4py and numpy, and nothing else.
"""

from __future__ import annotations

import socket
import sys
import time

import numpy as np
from mpi4py import MPI

from holdfast_bench.collectives.terms import num_wrong, term


def main() -> None:
    """Connect to the Unix socket that is named, tell the rank, and answer each line that comes."""
    address, size = sys.argv[1], int(sys.argv[2])
    members = MPI.COMM_WORLD
    vector = np.zeros(size // 4, np.float32)

    def wrong() -> int:
        vector[:] = term(len(vector), members.rank)
        members.Allreduce(MPI.IN_PLACE, vector)
        found = num_wrong(vector, members.size)
        vector[:] = 0  # sums of sums stay finite
        return found

    def seconds(loops: int) -> float:
        members.Barrier()
        began = time.perf_counter()
        for _ in range(loops):
            members.Allreduce(MPI.IN_PLACE, vector)
        return (time.perf_counter() - began) / loops

    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        connection.sendall(b"%d\n" % members.rank)
        # A worker of MPI keeps its core busy while it waits for others. This wait, while other
        # systems are measured, does not; it ends when the other end closes.
        for line in connection.makefile():
            answer = wrong() if line == "wrong\n" else seconds(int(line))
            connection.sendall(f"{answer}\n".encode())


if __name__ == "__main__":
    main()
