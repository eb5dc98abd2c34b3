"""Program: runs a script as the main module of a fork, up to the end of Python.

The script is the main module of this process, as if it had been started from a shell. It ends like
any Python program, except that its objects are not destroyed: the destructor of a gloo process
group holds the interpreter while it waits for its threads, and one of these may wait for it
(https://github.com/pytorch/pytorch/issues/56297).

This module must not know that the process is a worker.
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
    """Run a script up to the end of Python; returns its exit status.

    A process that the script has forked, and that returns from it, too, ends here.
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
            sys.excepthook(type(error), strip_internal_frames(error), error.__traceback__)
            _end_fork(1)
        finally:
            os._exit(1)  # in any case, it must not continue as the worker
    return code


def end() -> None:
    """Do what Python does at the end of a process before it destroys modules."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    _close_files()


def strip_internal_frames(error: BaseException, *callers: str) -> BaseException:
    """An exception whose traceback begins in the script, not in this file or in `callers`."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename in (__file__, *callers):
        trace = trace.tb_next
    return error.with_traceback(trace)


def _end_fork(code: int) -> NoReturn:
    """End a process that the script has forked and that returned from it."""
    end()
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _run(script: Script) -> int:
    """Run the script as the main module; returns its exit status."""
    main = sys.modules["__main__"] = sys.modules["__mp_main__"] = ModuleType("__main__")
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
    """The exit status of a process that raises this."""
    if raised.code is None or isinstance(raised.code, int):
        return (raised.code or 0) & 0xFF
    print(raised.code, file=sys.stderr)
    return 1


def _close_files() -> None:
    """Close files that are open for writing, as Python does at its end."""
    gc.unfreeze()  # the script may have frozen objects
    files = [each for each in gc.get_objects() if issubclass(type(each), io.IOBase)]
    for file in sorted(files, key=lambda file: _layer(type(file))):
        with contextlib.suppress(Exception):  # a file may be of any user class
            if file.writable() and file.fileno() > sys.stderr.fileno():
                file.close()


def _layer(kind: type) -> int:
    """The layer of a file among those that wrap each other: text, compression, buffer, disk."""
    layers = ((io.TextIOBase,), (io.BufferedIOBase,), (io.BufferedWriter, io.BufferedRandom))
    return max((n for n, layer in enumerate(layers) if issubclass(kind, layer)), default=3)
