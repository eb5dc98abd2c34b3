"""Spawn: starts the process of the fork server.

It imports torch, which takes longer than everything else before the first step. So a command starts
it before it reads its own arguments, and this module imports as little as possible.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from holdfast.launch import environment

if TYPE_CHECKING:
    from holdfast.launch.forked import ControlProcess, ForkedProcess

WORKER: Final = "holdfast.worker.main"
"""The module whose `main` a training worker runs."""

_GLIBC: Final = {
    # With the defaults, freed gradients go back to the kernel and are faulted in again each step.
    "malloc.mmap_threshold": 4 << 30,
    "malloc.trim_threshold": 8 << 30,
    # With pages of 4 KiB, page table lookups take up to 10 % of a step.
    "malloc.hugetlb": 1,
    # Larger copies bypass the cache: another worker reads what they write.
    "cpu.x86_non_temporal_threshold": 256 << 10,
}


_SAME_BITS: Final = {
    # Iteration over a set of strings must have the same order in every worker, in its
    # replacement, and after a resume.
    "PYTHONHASHSEED": "0",
    # MKL may otherwise choose its kernels by the alignment of a tensor or by the load of the host
    # (oneMKL Developer Guide, "Obtaining Numerically Reproducible Results").
    "MKL_CBWR": "AUTO",
    "MKL_DYNAMIC": "FALSE",
    # cuBLAS may otherwise give a product that runs on another stream a workspace of another size
    # (cuBLAS documentation, "Results Reproducibility").
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
}
_ARROW: Final = "JE_ARROW_MALLOC_CONF"
_LOOPBACK: Final = {
    # Otherwise gloo and NCCL listen on the interface that the host's name resolves to.
    "GLOO_SOCKET_IFNAME": "lo",
    "NCCL_SOCKET_IFNAME": "lo",
}


def worker_environment() -> dict[str, str]:
    """The environment of workers; the user's own settings for allocators take precedence."""
    return environment.inherited(os.environ) | _own_variables()


def _own_variables() -> dict[str, str]:
    tunables = [f"glibc.{name}={value}" for name, value in _GLIBC.items()]
    tunables += filter(None, [os.environ.get("GLIBC_TUNABLES")])
    # One thread until a worker sets its number: a process with threads must not be forked.
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    # Nor may the allocator of pyarrow start one when a task imports it.
    arrow = {_ARROW: os.environ.get(_ARROW, "background_thread:false")}
    return {**threads, **arrow, **_SAME_BITS, **_LOOPBACK, "GLIBC_TUNABLES": ":".join(tunables)}


@dataclass(frozen=True, slots=True)
class Spawned:
    """The process of a fork server that may not be ready yet.

    Attributes:
        process: Ends when this process does.
        socket: Connected to it.
        output: A descriptor of the anonymous file that its output goes to.
        is_command: True if this process is a command, which may be forked too while it has one
            thread. A program of a user may not: nothing is known of it.
    """

    process: subprocess.Popen[bytes]
    socket: socket.socket
    output: int
    is_command: bool = False

    def fork_control(
        self, process: ControlProcess, output: int, fds: Collection[int]
    ) -> ForkedProcess | None:
        """Fork this process; see `launch.child.Forker`."""
        if not self.is_command:
            return None
        from holdfast.launch.forked import fork

        return fork(process, output, {fd: fd for fd in fds})


def open_standard_streams() -> None:
    """Open /dev/null where a standard stream is closed, so that nothing else gets its number."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))


def spawn(entry: str, *, is_command: bool = False) -> Spawned:
    """Start a fork server whose forks call `main` of the module `entry`.

    Args:
        entry: Name of the module.
        is_command: See `Spawned`.
    """
    open_standard_streams()
    near, far = socket.socketpair()
    output = os.memfd_create("holdfast-fork-server", os.MFD_CLOEXEC)
    arguments = ["--socket", str(far.fileno()), "--parent", str(os.getpid()), "--entry", entry]
    own = {**_own_variables(), "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    changed = [*own, *environment.left_out(os.environ, ())]
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast.launch.fork_server", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        pass_fds=[far.fileno()],
        env={**worker_environment(), **own, **environment.remembered(changed)},
        start_new_session=True,
    )
    far.close()
    return Spawned(process, near, output, is_command)
