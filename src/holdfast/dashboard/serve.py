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

LOOPBACK: Final = ("127.0.0.1", "localhost")
START_TIMEOUT_S: Final = 120.0
"""A machine under load takes long to import."""
END_TIMEOUT_S: Final = 5.0
_TICK_S: Final = 0.1


def check(host: str) -> None:
    """Check what the dashboard needs.

    Raises:
        JobError: It would listen on other than this machine's own address, or is not installed.
    """
    if host not in LOOPBACK:
        raise JobError(
            f"--host {host}: the dashboard has no access control yet, so it listens on 127.0.0.1 "
            "only; from another machine, use ssh -L 8501:127.0.0.1:8501"
        )
    missing = [name for name in ("streamlit", "plotly") if importlib.util.find_spec(name) is None]
    if missing:
        raise JobError(
            f"the dashboard needs {' and '.join(missing)}; pip install 'holdfast[dashboard]'"
        )


def free_port(wanted: int) -> int:
    """The wanted port; for 0, one that is free.

    Raises:
        JobError: It is in use.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK[0], wanted))
        except OSError as error:
            raise JobError(
                f"--port {wanted}: {error.strerror}; pass another, or 0 for any that is free"
            ) from None
        return int(probe.getsockname()[1])


@contextmanager
def served(path: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """While the block runs, the page of the runs in `path` is served; then its process is ended.

    Raises:
        HoldfastError: It does not start.
    """
    words = ["-m", "holdfast.dashboard.process", str(port), str(os.getpid()), str(path.resolve())]
    process = subprocess.Popen([sys.executable, *words], stdin=subprocess.DEVNULL)
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
    connection = http.client.HTTPConnection(LOOPBACK[0], port, timeout=5)
    try:
        connection.request("GET", "/_stcore/health")
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
