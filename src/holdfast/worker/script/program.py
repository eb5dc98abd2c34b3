"""Program: a script as the main module of a fork, from its start to Python's end.

The script is the main module of this process, as if it had been started from a shell. Its end is
that of a Python program but for one thing: what it has made is not torn down. A process group of
gloo holds the interpreter in its destructor while it waits for threads of its own, and of these one
may wait for the interpreter (https://github.com/pytorch/pytorch/issues/56297).

It must not know that this process is a worker.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import io
import os
import runpy
import sys
import threading
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import NoReturn

from holdfast.job.script_job import Script


def run(script: Script) -> int:
    """Run a script to where Python would end; returns the status that it exits with.

    A process that it has forked, and that comes to its end like it, ends here.
    """
    pid = os.getpid()
    try:
        code = _run(script)
        if os.getpid() != pid:
            _end_fork(code)
    except BaseException as error:
        if os.getpid() == pid:
            raise
        try:
            sys.excepthook(type(error), without_us(error), error.__traceback__)
            _end_fork(1)
        finally:
            os._exit(1)  # whatever else goes wrong: it must not go on as the worker
    return code


def end() -> None:
    """Do what Python does at the end of a process, up to where it tears down modules."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    _close_files()


def without_us(error: BaseException, *callers: str) -> BaseException:
    """An exception whose traceback begins in the script, not in this file or its callers'."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename in (__file__, *callers):
        trace = trace.tb_next
    return error.with_traceback(trace)


def _end_fork(code: int) -> NoReturn:
    """End a process that the script has forked, and that has come to the script's end like it."""
    end()
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


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
    except SystemExit as raised:
        return _status(raised)
    return 0


def _prepare(directory: str, *arguments: str) -> None:
    sys.argv = list(arguments)
    if not sys.flags.safe_path:
        sys.path.insert(0, directory)


def _status(raised: SystemExit) -> int:
    """What a process exits with that raises this."""
    if raised.code is None or isinstance(raised.code, int):
        return (raised.code or 0) & 0xFF
    print(raised.code, file=sys.stderr)
    return 1


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
