"""Serve: starts the process of the dashboard, waits until its page answers, and ends it."""

from __future__ import annotations

import http.client
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from holdfast.errors import HoldfastError, JobError
from holdfast.views.dashboard.loopback_only import ADDRESS

START_TIMEOUT_S: Final = 120.0
"""A machine under load takes long to import."""
END_TIMEOUT_S: Final = 5.0
_TICK_S: Final = 0.1


def check() -> None:
    """Check what the dashboard needs.

    Raises:
        JobError: It is not installed.
    """
    missing = [name for name in ("streamlit", "plotly") if importlib.util.find_spec(name) is None]
    if missing:
        raise JobError(
            f"the dashboard needs {' and '.join(missing)}; pip install 'holdfast[dashboard]'"
        )


@contextmanager
def served(path: Path, listener: socket.socket) -> Iterator[subprocess.Popen[bytes]]:
    """While the block runs, the page of the runs in `path` is served; then its process is ended.

    Args:
        path: A run, or a directory with runs in it.
        listener: Closed here, because the process has it.

    Raises:
        HoldfastError: It does not start.
    """
    words = [
        "-m", "holdfast.views.dashboard.server_process", str(listener.fileno()), str(os.getpid()),
        str(path.resolve()),
    ]  # fmt: skip
    port = int(listener.getsockname()[1])
    with listener:
        process = subprocess.Popen(
            [sys.executable, *words], stdin=subprocess.DEVNULL, pass_fds=[listener.fileno()]
        )
    try:
        _wait(process, port)
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_TIMEOUT_S)
        process.kill()
        process.wait()


def _wait(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while not _answers(port):
        if process.poll() is not None:
            raise HoldfastError(
                f"the dashboard ended with status {process.returncode} before it served its page; "
                "its output is above"
            )
        if time.monotonic() > deadline:
            raise HoldfastError(
                f"the dashboard has not started within {START_TIMEOUT_S:.0f} s; start it again "
                "when this machine is less busy"
            )
        time.sleep(_TICK_S)


def _answers(port: int) -> bool:
    connection = http.client.HTTPConnection(ADDRESS, port, timeout=5)
    try:
        connection.request("GET", "/_stcore/health")
        return connection.getresponse().status < http.client.INTERNAL_SERVER_ERROR
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
