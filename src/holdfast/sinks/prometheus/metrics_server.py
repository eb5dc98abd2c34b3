"""The HTTP server of metrics: what Prometheus scrapes.

Only this host reaches a loopback address. At any other address, a scrape shows the bearer token in
the run's directory, which only its owner can read. It gives no other right in the run.
"""

from __future__ import annotations

import os
import secrets
import socketserver
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar, Final
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry, MetricsHandler
from prometheus_client.registry import Collector

from holdfast.errors import JobError
from holdfast.rundir.run_directory import METRICS_TOKEN
from holdfast.sinks.prometheus.address import MetricsAddress

MAX_REQUESTS: Final = 8
"""Most requests that are answered at a time; further connections are closed."""
REQUEST_TIMEOUT_S: Final = 5.0
"""Most time for a client to send its request, or to read from the answer."""
END_POLL_S: Final = 0.05
"""Interval at which the server looks for the end of its run."""


@contextmanager
def serving(
    address: MetricsAddress,
    run_dir: Path,
    collectors: Iterable[Collector],
    say: Callable[[str], None],
) -> Iterator[None]:
    """Serve metrics while the block runs.

    Args:
        address: Address to serve at.
        run_dir: The run's directory on this host.
        collectors: Sources of the metrics.
        say: Tells the user where they are.

    Raises:
        JobError: This host cannot listen there, or the token cannot be kept.
    """
    registry = CollectorRegistry()
    for collector in collectors:
        registry.register(collector)
    path = run_dir / METRICS_TOKEN
    try:
        token = None if address.is_loopback else _token_in(path)
        server = _MetricsServer(address, registry, token)
    except OSError as error:
        raise JobError(f"metrics cannot be served at {address.address}: {error}") from None
    url = address.url(server.server_address[1])
    say(f"metrics: {url}" + (f", for the bearer token in {path}" if token else ""))
    thread = threading.Thread(
        target=server.serve_forever, args=(END_POLL_S,), name="metrics", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _token_in(path: Path) -> str:
    """The token in a file, which is made at the first start of a run: scrapers keep theirs."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    known = path.read_text().strip() if path.exists() else ""
    if known:  # a full disk may have left an empty file
        return known
    token = secrets.token_urlsafe(32)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(f"{token}\n")
    return token


class _MetricsServer(ThreadingHTTPServer):
    """Answers requests in threads that end with this process.

    Raises:
        OSError: This host cannot listen there.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(
        self, address: MetricsAddress, registry: CollectorRegistry, token: str | None
    ) -> None:
        self.address_family = address.family
        self._free = threading.BoundedSemaphore(MAX_REQUESTS)
        handler = type("_BoundHandler", (_Handler,), {"registry": registry, "token": token})
        super().__init__((address.address, address.port), handler)

    def server_bind(self) -> None:
        """Bind, without HTTPServer's search for the name of this host, which may take long."""
        socketserver.TCPServer.server_bind(self)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a request in a thread, unless there are too many."""
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer a request."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has gone, or sends nonsense, is no news for the run's terminal."""


class _Handler(MetricsHandler):
    """Answers one request."""

    timeout = REQUEST_TIMEOUT_S
    token: ClassVar[str | None] = None  # without one, all may have them

    def do_GET(self) -> None:  # noqa: N802  # the library's name
        """Answer with the metrics, if the client may have them."""
        if self.token is not None and not self._shows(self.token):
            self.send_response(HTTPStatus.UNAUTHORIZED)
            self.send_header("WWW-Authenticate", "Bearer")
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif urlsplit(self.path).path != "/metrics":
            self.send_error(HTTPStatus.NOT_FOUND)
        else:
            super().do_GET()

    def _shows(self, token: str) -> bool:
        shown = self.headers.get("Authorization", "")
        return secrets.compare_digest(shown.encode(), f"Bearer {token}".encode())
