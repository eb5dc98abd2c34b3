"""`holdfast dashboard`: show runs in the browser, live."""

from __future__ import annotations

import signal
import webbrowser
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli import complete
from holdfast.dashboard import serve
from holdfast.errors import HoldfastError, JobError
from holdfast.observe.run_dir import RUNS


def dashboard(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="[RUN|DIRECTORY]",
            help="Directory of a run, or one with runs in it.",
            autocompletion=complete.run,
        ),
    ] = RUNS,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = serve.LOOPBACK[0],
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0 for any that is free.")
    ] = 8501,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Open no browser; print the address only.")
    ] = False,
) -> None:
    """Show runs in the browser, live, until Ctrl-C."""
    serve.check(host)
    if not path.is_dir():
        raise JobError(f"{path} is no directory; pass the directory of a run, or one with runs")
    chosen = serve.free_port(port)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    with suppress(KeyboardInterrupt), serve.served(path, chosen) as process:
        url = f"http://{serve.LOOPBACK[0]}:{chosen}"
        print(f"dashboard of {path} at {url}; Ctrl-C ends it", flush=True)
        if not no_browser:
            webbrowser.open(url)
        status = process.wait()
        raise HoldfastError(f"the dashboard ended with status {status}; its output is above")
