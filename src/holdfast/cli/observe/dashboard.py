"""`holdfast dashboard`: show runs in the browser, live."""

from __future__ import annotations

import signal
import socket
import sys
import webbrowser
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli import complete
from holdfast.errors import HoldfastError, JobError
from holdfast.linux.lifeline import active_stop_signals
from holdfast.rundir.run_directory import RUNS
from holdfast.views.dashboard import serve
from holdfast.views.dashboard.loopback_only import ADDRESS, listen


def dashboard(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="[RUN|DIRECTORY]",
            help="Directory of a run, or one with runs in it.",
            autocompletion=complete.run,
        ),
    ] = RUNS,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0 for any that is free.")
    ] = 8501,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Open no browser; print the address only.")
    ] = False,
) -> None:
    """Show runs in the browser, live, until Ctrl-C."""
    serve.check()
    if not path.is_dir():
        raise JobError(f"{path} is no directory; pass the directory of a run, or one with runs")
    listener = listen(port)
    port = int(listener.getsockname()[1])
    url = f"http://{ADDRESS}:{port}"
    for number in active_stop_signals():
        signal.signal(number, signal.default_int_handler)
    with suppress(KeyboardInterrupt), serve.served(path, listener) as process:
        print(f"dashboard of {path} at {url}; Ctrl-C ends it")
        print(f"from another machine: ssh -L {port}:{ADDRESS}:{port} {socket.gethostname()}")
        sys.stdout.flush()
        if not no_browser:
            webbrowser.open(url)
        status = process.wait()
        raise HoldfastError(f"the dashboard ended with status {status}; its output is above")
