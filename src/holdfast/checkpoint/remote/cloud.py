"""Cloud: objects in a bucket of S3, or of what speaks its protocol, of Google or Azure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final

from holdfast.errors import JobError

SCHEMES: Final = ("s3", "gs", "az")
_TIMEOUT: Final = timedelta(minutes=5)
"""Timeout of a request: enough for the largest object over 1 Mbit/s."""
_CONNECT_TIMEOUT: Final = timedelta(seconds=10)
RETRY_S: Final = 30.0
"""Time for which a request is repeated."""
_MAX_RETRIES: Final = 10
_MAX_PAUSE: Final = timedelta(seconds=5)
_METADATA_ADDRESS: Final = "169.254.169.254"
"""Address at which a virtual machine asks for the credentials of its role."""
_STATUS: Final = re.compile(r"status code: (\d{3})")
_DETAILS: Final = re.compile(r"<Code>(.*?)</Code>(?:\s*<Message>(.*?)</Message>)?", re.DOTALL)
_UNREACHABLE: Final = "error sending request"
_TRANSIENT: Final = ("408", "429")
_MAX_REASON: Final = 200


class Cloud:
    """Objects of a bucket, below a prefix.

    Args:
        url: `s3://bucket/prefix`, `gs://…` or `az://…`.
        environment: Variables of the process. The library reads credentials from them itself.
        retry_s: Time for which a request is repeated that the server does not answer, or answers
            with an error of its own.

    Raises:
        JobError: The library is not installed, or does not understand the address or a variable.
    """

    def __init__(self, url: str, environment: Mapping[str, str], retry_s: float = RETRY_S) -> None:
        try:
            import obstore
            from obstore.exceptions import BaseError
            from obstore.store import from_url
        except ModuleNotFoundError:
            raise JobError(
                f"{url} needs the library obstore: pip install 'holdfast[objects]'"
            ) from None
        self.url = url
        self._obstore = obstore
        self._error = BaseError
        plain = environment.get("AWS_ALLOW_HTTP", "").lower() in ("1", "true")
        self._endpoint = environment.get("AWS_ENDPOINT_URL", "") if url.startswith("s3:") else ""
        if self._endpoint.startswith("http:") and not plain:
            raise JobError(
                f"AWS_ENDPOINT_URL is {self._endpoint}, which is not encrypted; use https, or set "
                "AWS_ALLOW_HTTP=true"
            )
        client: Any = {
            "allow_http": plain,
            "timeout": _TIMEOUT,
            "connect_timeout": _CONNECT_TIMEOUT,
        }
        try:
            self._store = from_url(url, client_options=client, retry_config=_retries(retry_s))
        except (BaseError, ValueError) as error:
            raise JobError(f"{url} cannot be used: {_reason(str(error))}") from None

    def put(self, name: str, data: bytes | memoryview, *, new: bool = False) -> bool:
        """Implements `Objects`."""
        mode = "create" if new else "overwrite"
        with self._errors():
            try:
                self._obstore.put(self._store, name, data, mode=mode, use_multipart=False)
            except self._obstore.exceptions.AlreadyExistsError:
                return False
        return True

    def get(self, name: str) -> bytes:
        """Implements `Objects`."""
        with self._errors():
            return bytes(self._obstore.get(self._store, name).bytes())

    def size(self, name: str) -> int | None:
        """Implements `Objects`."""
        with self._errors():
            try:
                return int(self._obstore.head(self._store, name)["size"])
            except FileNotFoundError:
                return None

    def children(self, folder: str) -> list[str]:
        """Implements `Objects`."""
        with self._errors():
            found = self._obstore.list_with_delimiter(self._store, folder or None)
        names = [*found["common_prefixes"], *(each["path"] for each in found["objects"])]
        return [name.rpartition("/")[2] for name in names]

    def delete(self, name: str) -> None:
        """Implements `Objects`."""
        with self._errors():
            # A bucket has no folders: what is below one is listed and deleted object by object.
            below = self._obstore.list(self._store, name).collect()
            for path in (name, *(each["path"] for each in below)):
                self._obstore.delete(self._store, path)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Raise errors of the library as those of `Objects`."""
        try:
            yield
        except FileNotFoundError as error:
            raise FileNotFoundError(f"{self.url}: {_reason(str(error))}") from None
        except self._error as error:
            text = str(error)
            if _METADATA_ADDRESS in text:
                raise PermissionError(
                    f"{self.url}: no credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
                ) from None
            if _UNREACHABLE in text:
                raise OSError(f"{self.url}: {self._endpoint or 'it'} cannot be reached") from None
            status = _STATUS.search(text)
            refused = status is not None and status[1][0] == "4" and status[1] not in _TRANSIENT
            kind = PermissionError if refused else OSError
            raise kind(f"{self.url}: {_reason(text)}") from None


def _retries(retry_s: float) -> Any:
    return {
        "max_retries": _MAX_RETRIES if retry_s else 0,
        "backoff": {"max_backoff": _MAX_PAUSE},
        "retry_timeout": timedelta(seconds=retry_s),
    }


def _reason(text: str) -> str:
    """Gist of an error of the library. The whole text has times and addresses in it, so
    that no two are equal.
    """
    if details := _DETAILS.search(text):
        return ": ".join(filter(None, details.groups()))
    first = text.strip().partition("\n")[0]
    return re.sub(r"^.*? in [\d.]+\S*s(?:, after .*?)? +- ", "", first)[:_MAX_REASON]
