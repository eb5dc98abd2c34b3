"""A worker that runs a script: one that `torchrun` could run, as it is.

    stand still ─▶ rendezvous ─▶ the environment of torchrun ─▶ the script ─▶ its end ─▶ wait

The script is the main module of this process, as if it had been started from a shell. Its end is
that of a Python program but for one thing: what it has made is not torn down. A process group of
gloo holds the interpreter in its destructor while it waits for threads of its own, and of these one
may wait for the interpreter (https://github.com/pytorch/pytorch/issues/56297).
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import io
import os
import runpy
import signal
import sys
import threading
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import numpy as np
import torch
from torch.distributed import distributed_c10d

from holdfast.arena.memory import Arena, Phase
from holdfast.errors import Aborted
from holdfast.job.script import Script
from holdfast.transport.shared_memory import SharedMemoryGroup
from holdfast.wire import shell
from holdfast.wire.channel import Channel
from holdfast.wire.launch import LEFT_STATUS, Launch
from holdfast.wire.lifeline import STOP_SIGNALS
from holdfast.wire.messages import Finished
from holdfast.worker import echo
from holdfast.worker.failure import failure
from holdfast.worker.rendezvous import HOST, found, serve
from holdfast.worker.seat import Left, Seat


def run(launch: Launch, script: Script, arena: Arena, seat: Seat, channel: Channel) -> int:
    """Run a script as one of its workers; returns the exit status."""
    pid, group = os.getpid(), SharedMemoryGroup(arena, launch.rank, launch.job.timeout_s)
    try:
        release = seat.await_release(None)
        group.enter(release.generation, release.members)
        store = serve(group, launch.job.port) if launch.rank == 0 else None  # as long as this runs
        _set_environment(launch, release.generation - 1, store.port if store else found(group))
        _forget_the_fork()
        _keep_process_groups()
        if not arena.stop_requested:
            arena.enter(launch.rank, Phase.COMPUTE)
            code = _run(script)
            if os.getpid() != pid:
                _end_fork(code)
            arena.check_abort()  # its end may have come of another's
            _end()
            if code != 0 or store is None:
                return code
            _be_quiet()  # others may still need the store
        result = {"status": "stopped" if arena.stop_requested else "finished"}
        channel.send(Finished(rank=launch.rank, generation=group.arena.generation, result=result))
        seat.await_leave()
    except (Left, Aborted):
        return LEFT_STATUS
    except BaseException as error:  # noqa: BLE001  # the boundary of the user's code
        if os.getpid() != pid:
            sys.excepthook(type(error), _without_us(error), error.__traceback__)
            _end_fork(1)
        return _fail(error, launch.rank, arena, channel)
    return 0


def _end_fork(code: int) -> NoReturn:
    """End a process that the script has forked, and that has come to the script's end like it."""
    _end()
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _be_quiet() -> None:
    """Have nothing of the script disturb a worker that is there for its store alone."""
    signal.alarm(0)
    signal.setitimer(signal.ITIMER_REAL, 0)
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _fail(error: BaseException, rank: int, arena: Arena, channel: Channel) -> int:
    """Tell of an exception and end as Python does, unless another worker's death was the cause."""
    error = _without_us(error)
    try:
        if echo.may_be_one(error):
            echo.await_abort(arena)
        arena.check_abort()
    except Aborted:
        return LEFT_STATUS
    channel.send(failure(rank, error))
    with contextlib.suppress(Exception):  # the script may have put anything in its place
        sys.stdout.flush()  # what was printed before comes before
    sys.excepthook(type(error), error, error.__traceback__)
    _end()
    return 1


def _without_us(error: BaseException) -> BaseException:
    """An exception whose traceback begins in the script."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return error.with_traceback(trace)


def _set_environment(launch: Launch, restarts: int, port: int) -> None:
    """Give back what the fork server has changed for itself, and add what torchrun would."""
    shell.restore()
    rank, world_size = str(launch.rank), str(launch.job.workers)
    errors = Path(launch.run_dir) / "logs" / f"rank-{rank}.error-{restarts}.json"
    os.environ |= {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "ROLE_RANK": rank,
        "GROUP_RANK": "0",
        "WORLD_SIZE": world_size,
        "LOCAL_WORLD_SIZE": world_size,
        "ROLE_WORLD_SIZE": world_size,
        "GROUP_WORLD_SIZE": "1",
        "ROLE_NAME": "default",
        "MASTER_ADDR": HOST,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": launch.attempt,
        "TORCHELASTIC_RESTART_COUNT": str(restarts),
        "TORCHELASTIC_MAX_RESTARTS": str(launch.job.restarts.limit),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_ERROR_FILE": str(errors),
        "HOLDFAST_RUN_DIR": launch.run_dir,
    }
    os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    if launch.job.workers > 1:
        os.environ.setdefault("OMP_NUM_THREADS", "1")


def _forget_the_fork() -> None:
    """Undo what a process has from the one that it was forked from, and no other program has."""
    threads = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    told = int(threads) if threads.isdigit() else 0
    torch.set_num_threads(told or len(os.sched_getaffinity(0)))
    torch.default_generator.seed()  # else all would draw alike; random sees to itself
    np.random.seed()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def _keep_process_groups() -> None:
    """Have no process group be destroyed, whatever the script lets go of."""
    make, kept = distributed_c10d._new_process_group_helper, []

    def make_and_keep(*arguments: Any, **more: Any) -> Any:
        kept.append(make(*arguments, **more))
        return kept[-1]

    distributed_c10d._new_process_group_helper = make_and_keep


def _run(script: Script) -> int:
    """Run the script as the main module; returns the status that it exits with."""
    main = sys.modules["__main__"] = ModuleType("__main__")
    vars(main).update(__annotations__={}, __builtins__=sys.modules["builtins"])
    try:
        if script.module is not None:
            _prepare(str(Path.cwd()), script.module, *script.arguments)
            runpy._run_module_as_main(script.module)  # type: ignore[attr-defined]
        else:
            given = script.path or ""
            path = str(Path.cwd() / given)
            _prepare(str(Path(given).resolve().parent), given, *script.arguments)
            loader = SourceFileLoader("__main__", path)
            vars(main).update(__file__=path, __cached__=None, __loader__=loader)
            code = compile(Path(path).read_bytes(), path, "exec", dont_inherit=True)
            exec(code, vars(main))  # noqa: S102  # what the user has asked to run
    except SystemExit as end:
        return _status(end)
    return 0


def _prepare(directory: str, *arguments: str) -> None:
    sys.argv = list(arguments)
    if not sys.flags.safe_path:
        sys.path.insert(0, directory)


def _status(end: SystemExit) -> int:
    """What a process exits with that raises this."""
    if end.code is None or isinstance(end.code, int):
        return (end.code or 0) & 0xFF
    print(end.code, file=sys.stderr)
    return 1


def _end() -> None:
    """Do what Python does at the end of a process, up to where it tears down modules."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    _close_files()


def _close_files() -> None:
    """Close what is open to be written to, which Python does as it tears down."""
    gc.unfreeze()  # the script may have frozen what it had
    found = [each for each in gc.get_objects() if issubclass(type(each), io.IOBase)]
    for file in sorted(found, key=lambda file: _layer(type(file))):
        with contextlib.suppress(Exception):  # it may be of any class that the user has written
            if file.writable() and file.fileno() > sys.stderr.fileno():
                file.close()


def _layer(kind: type) -> int:
    """Where a file is among those that lie about one another: text, compression, buffer, disk."""
    layers = ((io.TextIOBase,), (io.BufferedIOBase,), (io.BufferedWriter, io.BufferedRandom))
    return max((n for n, layer in enumerate(layers) if issubclass(kind, layer)), default=3)
