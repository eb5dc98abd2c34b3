"""EtcdClient: requests to an etcd cluster, by the JSON gateway of its v3 API.

See https://etcd.io/docs/v3.4/dev-guide/api_grpc_gateway/: keys and values are base64, 64-bit
numbers are strings, and fields that are zero are absent.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
from collections.abc import Mapping
from typing import Any, Final, TypeAlias
from urllib.parse import SplitResult, urlsplit

from holdfast.errors import HoldfastError, JobError
from holdfast.job.settings import EtcdSettings

TRY_TIMEOUT_S: Final = 1.0
"""Time in which one member answers, or the next one is asked."""

Fields: TypeAlias = Mapping[str, Any]
"""A message as JSON."""


class EtcdClient:
    """Asks the members of a cluster in turn; each request has a connection of its own.

    Args:
        settings: Where they are, and how they are trusted.

    Raises:
        JobError: A file of the settings cannot be used.
    """

    def __init__(self, settings: EtcdSettings) -> None:
        self._endpoints = [urlsplit(each) for each in settings.endpoints]
        self._first = 0  # the member that has answered last
        self._context: ssl.SSLContext | None = None
        if any(each.scheme == "https" for each in self._endpoints):
            self._context = _context(settings)

    def ask(self, method: str, message: Fields) -> Any:
        """The answer to a request. One that was not answered may have been carried out.

        Args:
            method: The path of the method below `/v3/`.
            message: The request.

        Raises:
            HoldfastError: No member has answered, or not as it should.
        """
        body = json.dumps(message).encode()
        reason = ""
        for _ in self._endpoints:
            endpoint = self._endpoints[self._first]
            try:
                return self._ask_one(endpoint, method, body)
            except (OSError, http.client.HTTPException, ValueError) as error:
                reason = f"{endpoint.geturl()}: {str(error) or type(error).__name__}"
                self._first = (self._first + 1) % len(self._endpoints)
        names = ", ".join(each.geturl() for each in self._endpoints)
        raise HoldfastError(
            f"etcd does not answer at any of {names} ({reason}); start it, or correct the key etcd"
        )

    def _ask_one(self, endpoint: SplitResult, method: str, body: bytes) -> Any:
        host = endpoint.hostname or ""
        if endpoint.scheme == "https":
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                host, endpoint.port, timeout=TRY_TIMEOUT_S, context=self._context
            )
        else:
            connection = http.client.HTTPConnection(host, endpoint.port, timeout=TRY_TIMEOUT_S)
        try:
            connection.request("POST", f"/v3/{method}", body)
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        found = json.loads(content) if answer.status == http.client.OK else None
        if not isinstance(found, dict) or not found.keys() & {"header", "result"}:
            raise OSError(content[:200].decode(errors="replace").strip())
        return found


def encoded(text: str) -> str:
    """A key or a value as a request has it."""
    return base64.b64encode(text.encode()).decode("ascii")


def decoded(value: str) -> str:
    """A key or a value of an answer."""
    return base64.b64decode(value).decode()


def _context(settings: EtcdSettings) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=settings.ca)
        if settings.certificate is not None:
            context.load_cert_chain(settings.certificate, settings.key)
    except OSError as error:
        files = [settings.ca, settings.certificate, settings.key]
        names = ", ".join(str(each) for each in files if each is not None)
        raise JobError(
            f"etcd: {error.strerror or error}; make {names} readable PEM files on every host"
        ) from None
    return context
