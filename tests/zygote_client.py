"""The client of a zygote: a `Popen` that has it fork `python -m holdfast…`."""

from __future__ import annotations

import fcntl
import json
import os
import select
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import zygote
from holdfast.launch.spawn import worker_environment

START_TIMEOUT_S: Final = 120.0
"""How long a fork may take, with the start of the zygote."""
PACKAGES: Final = ("holdfast", "holdfast_bench")
"""Packages whose processes the zygote forks."""
AT_START: Final = ("LD_", "PYTHON", "GLIBC_", "MKL_", "OMP_", "OPENBLAS_", "KMP_", "MALLOC_")
"""Prefixes of variables that matter at the start of a process only."""
TAKEN: Final = {"PYTHONPATH", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE"}
"""Those of them that a fork can take on."""

_STARTED: weakref.WeakSet[subprocess.Popen[Any]] = weakref.WeakSet()


class Client:
    """Where the zygote is, and whether the current test uses it.

    Args:
        folder: Shared by all pytest processes of a session.
    """

    def __init__(self, folder: Path) -> None:
        self.path, self._lock = folder / "zygote.socket", folder / "zygote.lock"
        self._log = folder / "zygote.log"
        self._own = worker_environment()
        self.is_used = True

    def takes(self, words: Sequence[str], environment: Mapping[str, str]) -> bool:
        """Whether the zygote can fork what these words start."""
        ours = len(words) > 2 and words[:2] == [sys.executable, "-m"]
        if not (self.is_used and ours and words[2].partition(".")[0] in PACKAGES):
            return False
        if "HOLDFAST_BUG" in environment:  # of a `sitecustomize` that looks at the process
            return False
        own = self._own
        names = {*environment, *os.environ}
        return all(
            environment.get(name) in (os.environ.get(name), own.get(name))
            for name in names - TAKEN
            if name.startswith(AT_START)
        )

    def for_shells(self) -> dict[str, str]:
        """Variables with which a shell finds a `holdfast` that the zygote forks."""
        self.start()
        place = os.pathsep.join([str(self.path), str(os.getpid()), sys.executable])
        own = [Path(__file__).parent / "bin", Path(sys.executable).parent]
        return {
            "PATH": os.pathsep.join([*map(str, own), os.environ["PATH"]]),
            "HOLDFAST_ZYGOTE": place,
        }

    def request(self, message: Mapping[str, Any], fds: Sequence[int] = ()) -> socket.socket:
        """Send a request; returns the connection, from which the answer can be read."""
        self.start()
        return requested(self.path, message, fds)

    def cpu_s(self) -> float:
        """CPU time of the processes that this one has had forked."""
        if not self.path.exists():
            return 0.0
        with self.request({"client": os.getpid()}) as connection:
            return read_number(connection) / 1e6

    def start(self) -> None:
        """Start the zygote, if no other process has; it ends with the first pytest process."""
        if not self.path.exists():
            with locked(self._lock):
                if not self.path.exists():
                    self._start()

    def _start(self) -> None:
        owner = os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()
        new = self.path.with_suffix(".new")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(new))
            listener.listen(128)
            listener.set_inheritable(True)
            options = ["--listener", str(listener.fileno()), "--owner", str(owner)]
            environment = {**self._own, zygote.RESERVED: "-" * (64 << 10)}
            created = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            os.posix_spawn(
                sys.executable,
                [sys.executable, zygote.__file__, *options, zygote.PADDING],
                environment,
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_OPEN, 1, str(self._log), created, 0o600),
                    (os.POSIX_SPAWN_DUP2, 1, 2),
                ],
            )
        new.rename(self.path)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """While the block runs, no other process is in a block with this lock."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def requested(path: Path | str, message: Mapping[str, Any], fds: Sequence[int]) -> socket.socket:
    """Send a request to the zygote at `path`; returns the connection."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(START_TIMEOUT_S)
        connection.connect(str(path))
        body = json.dumps(message).encode()
        socket.send_fds(connection, [zygote.LENGTH.pack(len(body))], fds)
        connection.sendall(body)
    except OSError:
        connection.close()
        raise
    return connection


def read_number(connection: socket.socket) -> int:
    """One number of an answer."""
    answer = connection.recv(zygote.NUMBER.size, socket.MSG_WAITALL)
    if len(answer) < zygote.NUMBER.size:
        raise ConnectionError("the zygote has ended; see zygote.log in the folder of its socket")
    return zygote.NUMBER.unpack(answer)[0]


def install(client: Client) -> None:
    """Let `subprocess` start the processes of holdfast through the zygote."""

    class Popen(_Popen):
        _client = client

    subprocess.Popen = Popen  # type: ignore[misc]


def living_cpu_s() -> float:
    """CPU time of processes that this one started by exec and has not waited for."""
    return sum(zygote.cpu_s_of(each.pid) for each in _STARTED if each.returncode is None)


class _Popen(subprocess.Popen):  # type: ignore[type-arg]
    """Replaces how a process is started and how its end is noticed, if the zygote takes it."""

    _client: Client
    _connection: socket.socket | None = None  # to the zygote, until the process has ended
    _pidfd = -1

    def _execute_child(self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *rest):  # type: ignore[no-untyped-def]
        words = [args] if isinstance(args, str | bytes | os.PathLike) else list(args)
        words = [os.fsdecode(word) for word in words]
        environment = {os.fsdecode(n): os.fsdecode(v) for n, v in (env or {}).items()}
        environment = dict(os.environ) if env is None else environment
        # In CPython 3.11 to 3.13: 2 is shell, 3 to 8 are pipes, 10 to 13 gid, gids, uid and umask,
        # 14 start_new_session, 15 process_group.
        given = (rest[3], rest[6], rest[8])
        special = (executable, preexec_fn, rest[2], *rest[10:14], rest[15])
        is_plain = all(each in (None, False, -1) for each in special)
        if not is_plain or not self._client.takes(words, environment):
            super()._execute_child(
                args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *rest
            )
            _STARTED.add(self)
            return
        streams = [number if fd == -1 else fd for number, fd in enumerate(given)]
        message = {
            "client": os.getpid(),
            "words": words,
            "environment": environment,
            "directory": str(Path(os.fsdecode(cwd or "")).absolute()),
            "numbers": [0, 1, 2, *map(int, pass_fds)],
            "in_session": bool(rest[14]),
        }
        connection = self._client.request(message, [*streams, *map(int, pass_fds)])
        try:
            self.pid = read_number(connection)
            if self.pid < 0:
                raise OSError(f"the fork of {words[2]} ended with wait status {-1 - self.pid}")
        except OSError:
            connection.close()
            raise
        self._connection = connection
        self._pidfd = os.pidfd_open(self.pid)
        self._child_created = True
        self._close_pipe_fds(rest[3], rest[4], rest[5], rest[6], rest[7], rest[8])

    def _try_wait(self, wait_flags):  # type: ignore[no-untyped-def]
        if self._connection is None:
            return super()._try_wait(wait_flags)
        self._connection.settimeout(None)
        if wait_flags & os.WNOHANG and not _is_readable(self._pidfd, 0):
            return 0, 0
        try:
            status = -1 - read_number(self._connection)
        except ConnectionError:
            status = 9  # the zygote was killed, and with it the process
        self._connection.close()
        os.close(self._pidfd)
        return self.pid, status

    def _internal_poll(self, _deadstate=None, **_):  # type: ignore[no-untyped-def]
        if self._connection is None:
            return super()._internal_poll(_deadstate=_deadstate)
        if self.returncode is None and self._waitpid_lock.acquire(blocking=False):
            try:
                if self.returncode is None:
                    pid, status = self._try_wait(os.WNOHANG)
                    if pid == self.pid:
                        self._handle_exitstatus(status)
            finally:
                self._waitpid_lock.release()
        return self.returncode

    def _wait(self, timeout):  # type: ignore[no-untyped-def]
        if self._connection is None or self.returncode is not None or timeout is None:
            return super()._wait(timeout)
        deadline = time.monotonic() + timeout
        while self._internal_poll() is None:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise subprocess.TimeoutExpired(self.args, timeout)
            if self._connection.fileno() >= 0:  # no other thread has seen the end
                _is_readable(self._connection, left_s)
        return self.returncode


def _is_readable(connection: socket.socket | int, timeout_s: float) -> bool:
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(1000 * timeout_s))
