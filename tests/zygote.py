"""Zygote: a process that has imported holdfast and torch, and forks the processes that tests start.

It stands in for the start of `python -m holdfast…`: a fork takes on the words, environment,
directory, session and descriptors of a request and runs the module as Python does. So what a test
sees of the process is what it would see of one that was started by exec, except for its parent.

One serves all pytest processes of a session. Each process that it forks has a connection: the
process answers with its id, later the zygote with its wait status s as -1 - s, and reaps it when
the connection ends. If that ends first, the process is killed.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import ctypes
import fcntl
import gc
import importlib
import io
import json
import os
import runpy
import selectors
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NoReturn

IMPORTED: Final = (
    "holdfast.worker.main",
    "holdfast.coordinator.main",
    "holdfast.agent.main",
    "holdfast.cli.app",
)
PADDING: Final = "=" * 8192
"""The last word of the zygote's command line: space for the words of a fork."""
RESERVED: Final = "HOLDFAST_ZYGOTE_RESERVED"
"""A variable of the zygote whose value is space for the environment of a fork."""
LENGTH: Final = struct.Struct("<I")
NUMBER: Final = struct.Struct("<q")
MAX_FDS: Final = 64
REQUEST_TIMEOUT_S: Final = 30.0

_FORKED: Final = {
    "holdfast.launch.control",
    "holdfast.launch.fork_server",
    "holdfast_bench.run",
}
"""Modules that a forked command forks from itself, too."""
_GIVEN: Final = {Path(entry).absolute() for entry in os.environ.get("PYTHONPATH", "").split(":")}
_INTERPRETER: Final = [entry for entry in sys.path[1:] if Path(entry).absolute() not in _GIVEN]
"""The module path of the interpreter; its first entry here is the directory of this file."""
_TICKS: Final = os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Serve until the process `--owner` ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--listener", type=int, required=True)
    parser.add_argument("--owner", type=int, required=True)
    parser.add_argument("padding")
    options = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for pytest
    _close_all_but({0, 1, 2, options.listener})  # others of a test, whose ends it waits for
    owner = os.pidfd_open(options.owner)
    gc.disable()
    for module in IMPORTED:
        importlib.import_module(module)
    sys.modules["holdfast.worker.main"].warm_up()
    gc.freeze()
    gc.enable()
    assert _num_threads() == 1, "the imports started a thread; forking would not be safe"
    _Zygote(socket.socket(fileno=options.listener), owner).run()


@dataclass(slots=True, eq=False)
class _Process:
    pid: int
    pidfd: int
    client: int
    has_ended: bool = False


class _Zygote:
    def __init__(self, listener: socket.socket, owner: int) -> None:
        self._listener, self._owner = listener, owner
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ, self._accept)
        self._selector.register(owner, selectors.EVENT_READ, self._leave)
        self._running: dict[socket.socket, _Process] = {}
        self._reaped_s: dict[int, float] = {}  # CPU time of a client's processes that were reaped
        self._first = 0  # the client to which this process itself is charged

    def run(self) -> NoReturn:
        while True:
            for key, _ in self._selector.select():
                key.data()

    def _leave(self) -> NoReturn:
        for process in self._running.values():
            signal.pidfd_send_signal(process.pidfd, signal.SIGKILL)
        os._exit(0)

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        connection.settimeout(REQUEST_TIMEOUT_S)
        request, fds = _received(connection)
        if request is None:
            connection.close()
        elif "words" in request:
            self._fork(connection, request, fds)
        else:
            with contextlib.suppress(OSError):
                connection.sendall(NUMBER.pack(int(1e6 * self._cpu_s(request["client"]))))
            connection.close()

    def _fork(self, connection: socket.socket, request: dict[str, Any], fds: list[int]) -> None:
        zygote, client = str(os.getpid()), request["client"]
        pid = os.fork()
        if pid == 0:
            words = request["words"]
            for position, word in enumerate(words):
                names_parent = words[position - 1] == "--parent" or position == len(words) - 1
                if names_parent and word == str(client):
                    words[position] = zygote
                elif word == f"--parent={client}":
                    words[position] = f"--parent={zygote}"
            become(
                words,
                request["environment"],
                request["directory"],
                dict(zip(request["numbers"], fds, strict=True)),
                in_session=request["in_session"],
                ready=lambda: connection.sendall(NUMBER.pack(os.getpid())),
            )
        for fd in fds:
            os.close(fd)
        process = _Process(pid, os.pidfd_open(pid), client)
        self._running[connection] = process
        self._selector.register(
            process.pidfd, selectors.EVENT_READ, lambda: self._ended(connection)
        )
        self._selector.register(
            connection, selectors.EVENT_READ, lambda: self._released(connection)
        )

    def _ended(self, connection: socket.socket) -> None:
        """A process has ended: it stays a zombie while a client may send it signals."""
        process = self._running[connection]
        self._selector.unregister(process.pidfd)
        process.has_ended = True
        end = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        status = end.si_status << 8 if end.si_code == os.CLD_EXITED else end.si_status
        with contextlib.suppress(OSError):
            connection.sendall(NUMBER.pack(-1 - status))
        if connection not in self._selector.get_map():
            self._reap(connection)

    def _released(self, connection: socket.socket) -> None:
        """The client has its status, or has ended."""
        self._selector.unregister(connection)
        process = self._running[connection]
        if process.has_ended:
            self._reap(connection)
        else:
            signal.pidfd_send_signal(process.pidfd, signal.SIGKILL)

    def _reap(self, connection: socket.socket) -> None:
        process = self._running.pop(connection)
        _, _, used = os.wait4(process.pid, 0)
        seconds = self._reaped_s.get(process.client, 0.0) + used.ru_utime + used.ru_stime
        self._reaped_s[process.client] = seconds
        os.close(process.pidfd)
        connection.close()

    def _cpu_s(self, client: int) -> float:
        """CPU time of all processes of a client."""
        self._first = self._first or client
        own_s = time.process_time() if client == self._first else 0.0
        running = (each.pid for each in self._running.values() if each.client == client)
        return own_s + self._reaped_s.get(client, 0.0) + sum(map(cpu_s_of, running))


def cpu_s_of(pid: int) -> float:
    """CPU time of a process and of its children that have ended; 0 if it has been reaped."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / _TICKS


def _received(connection: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """A request and its descriptors; none if the client has gone."""
    fds: list[int] = []
    try:
        head, fds, _, _ = socket.recv_fds(connection, LENGTH.size, MAX_FDS)
        with connection.makefile("rb") as stream:
            head += stream.read(LENGTH.size - len(head))
            body = stream.read(LENGTH.unpack(head)[0])
            return json.loads(body), fds
    except (OSError, struct.error, ValueError):
        for fd in fds:
            os.close(fd)
        return None, []


def become(
    words: list[str],
    environment: dict[str, str],
    directory: str,
    fds: dict[int, int],
    *,
    in_session: bool,
    ready: Callable[[], object] = lambda: None,
) -> NoReturn:
    """Make of this fork what `exec` would make of it, and run its module.

    Args:
        words: `python -m MODULE WORD …`.
        environment: All of it.
        directory: The working directory.
        fds: By the number of a descriptor in the new process, its number here.
        in_session: Whether it gets a session of its own.
        ready: Called once it looks to other processes like one started by exec.
    """
    status = 70
    try:
        if in_session:
            os.setsid()
        os.chdir(directory)
        _take_environment(environment)
        _take_words(words, environment, directory)
        ready()
        _keep_descriptors(fds)
        _open_streams(environment)
        _default_signals()
        _customize(environment)
        subprocess.Popen = Forking  # type: ignore[misc]
        status = _run(words[2])
    except BaseException:  # noqa: BLE001  # the outermost frame of this process
        traceback.print_exc()
    finally:
        os._exit(status)


def _keep_descriptors(fds: dict[int, int]) -> None:
    above = max([2, *fds, *fds.values()]) + 1
    copies = {number: fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, above) for number, fd in fds.items()}
    for number, copy in copies.items():
        os.dup2(copy, number)
    _close_all_but({*fds})


def _close_all_but(kept: set[int]) -> None:
    for number in {int(entry.name) for entry in Path("/proc/self/fd").iterdir()} - kept:
        with contextlib.suppress(OSError):  # that of the listing
            os.close(number)


def _take_environment(environment: dict[str, str]) -> None:
    """For this process and for those that look into /proc."""
    os.environ.clear()  # from here on, the C library has no pointer into the old environment
    words = (os.fsencode(f"{name}={value}") + b"\0" for name, value in environment.items())
    _overwrite(50, b"".join(words))
    os.environ.update(environment)
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # as the import of `holdfast.wire` sets it
    tempfile.tempdir = None  # TMPDIR may be another one
    time.tzset()


def _take_words(words: list[str], environment: dict[str, str], directory: str) -> None:
    _overwrite(48, b"".join(os.fsencode(word) + b"\0" for word in words))
    sys.orig_argv[:] = words
    sys.argv[:] = ["-m", *words[3:]]
    given = environment.get("PYTHONPATH")
    extra = given.split(os.pathsep) if given else []
    sys.path[:] = [directory, *(entry or directory for entry in extra), *_INTERPRETER]
    sys.dont_write_bytecode = bool(environment.get("PYTHONDONTWRITEBYTECODE"))
    importlib.invalidate_caches()


def _overwrite(field: int, content: bytes) -> None:
    """Put `content` where the kernel reads the command line (field 48 of proc_pid_stat(5)) or the
    environment (field 50) of this process.
    """
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start = int(fields[field - 3])
    size = int(fields[field - 2]) - start
    assert len(content) < size, f"{len(content)} bytes of words do not fit into {size}"
    ctypes.memset(start, 0, size)
    ctypes.memmove(start, content, len(content))


def _open_streams(environment: dict[str, str]) -> None:
    """Open standard streams as Python does at its start."""
    plain = bool(environment.get("PYTHONUNBUFFERED"))
    sys.stdin = sys.__stdin__ = open(  # type: ignore[misc]  # noqa: SIM115
        0, closefd=False
    )
    for number, name in ((1, "stdout"), (2, "stderr")):
        raw = io.FileIO(number, "w", closefd=False)
        stream = io.TextIOWrapper(
            raw if plain else io.BufferedWriter(raw),
            errors="strict" if number == 1 else "backslashreplace",
            line_buffering=not plain and (number == 2 or raw.isatty()),
            write_through=plain,
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _default_signals() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _customize(environment: dict[str, str]) -> None:
    """Import `sitecustomize` of PYTHONPATH, as Python does at its start."""
    entries = environment.get("PYTHONPATH", "").split(os.pathsep)
    if PathFinder.find_spec("sitecustomize", [entry for entry in entries if entry]):
        sys.modules.pop("sitecustomize", None)
        importlib.import_module("sitecustomize")


def _run(module: str) -> int:
    """Run a module as `python -m` does; returns the exit status of this process."""
    sys.modules["__main__"] = ModuleType("__main__")
    sys.modules.pop(module, None) if "." in module else None
    status = 0
    try:
        runpy._run_module_as_main(module)  # type: ignore[attr-defined]
    except SystemExit as end:
        status = _status(end.code)
    except BaseException as error:  # noqa: BLE001  # as the interpreter does
        sys.excepthook(type(error), error, error.__traceback__)
        status = 1
        if isinstance(error, KeyboardInterrupt):
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            status = 120
    return status


def _status(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    print(code, file=sys.stderr)
    return 1


class Forking(subprocess.Popen):  # type: ignore[type-arg]
    """`Popen` of a forked command: it forks the modules `_FORKED` from itself."""

    def _execute_child(self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *rest):  # type: ignore[no-untyped-def]
        words = [args] if isinstance(args, str | bytes | os.PathLike) else list(args)
        (_, _, shell, stdin, _, _, stdout, _, stderr, *_, in_session, _) = rest
        ours = words[:2] == [sys.executable, "-m"] and words[2:3][0] in _FORKED
        if not ours or shell or preexec_fn or _num_threads() > 1:
            super()._execute_child(
                args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *rest
            )
            return
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        environment = dict(os.environ if env is None else env)
        streams = {0: stdin, 1: stdout, 2: stderr}
        fds = {number: number if fd == -1 else fd for number, fd in streams.items()}
        self.pid = os.fork()
        if self.pid == 0:
            become(
                [os.fspath(word) for word in words],
                environment,
                str(Path(cwd or "").absolute()),
                fds | {fd: fd for fd in pass_fds},
                in_session=in_session,
            )
        self._child_created = True
        self._close_pipe_fds(rest[3], rest[4], rest[5], rest[6], rest[7], rest[8])


def _num_threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


if __name__ == "__main__":
    main()
