"""`holdfast dashboard`: show runs in the browser, live."""

from __future__ import annotations

import signal
import sys
import webbrowser
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli import complete
from holdfast.errors import HoldfastError, JobError
from holdfast.rundir.run_directory import RUNS
from holdfast.views.dashboard import serve
from holdfast.views.dashboard.access import keys, login
from holdfast.views.dashboard.access.address import LOOPBACK, Address


def dashboard(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="[RUN|DIRECTORY]",
            help="Directory of a run, or one with runs in it.",
            autocompletion=complete.run,
        ),
    ] = RUNS,
    host: Annotated[
        str,
        typer.Option(help="Address or name of this host to listen on; others ask for the token."),
    ] = LOOPBACK,
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
    address, token = Address.parse(host), keys.token()
    fingerprint = None if address.is_loopback else keys.certificate(address)
    listener = address.listen(port)
    url = address.url(listener.getsockname()[1])
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    with suppress(KeyboardInterrupt), serve.served(path, address, listener) as process:
        print(f"dashboard of {path} at {url}; token in {keys.token_file()}; Ctrl-C ends it")
        if fingerprint is not None:
            print(f"certificate, signed by itself; its SHA-256 fingerprint: {fingerprint}")
        if sys.stdout.isatty():  # a log would keep it
            print(f"with the token: {login.with_query(f'{url}/', [(login.TOKEN, token)])}")
        sys.stdout.flush()
        if not no_browser:
            webbrowser.open(url)  # without the token, which others could see in a command line
        status = process.wait()
        raise HoldfastError(f"the dashboard ended with status {status}; its output is above")
