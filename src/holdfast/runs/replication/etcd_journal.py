"""EtcdJournal: the leader and the journal of one start of a run, as keys of etcd.

    leader            the node that leads, bound to its lease
    journal/00000001  the entries, in order
    coordinator       address and port where hosts join, once the coordinator has moved

Only a leader writes. Each of its transactions compares the revision at which its leader key was
made: so one that was replaced can write nothing, whatever it believes.

A node becomes the leader by writing the leader key, if there is none and the journal has begun. The
key ends with the lease of the node. Of several that try at once, etcd lets one write; all learn
which from the keys. A request that was not answered may have been carried out, so it is repeated
with the same comparison: `append` finds its own entry then.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias
from urllib.parse import SplitResult, urlsplit

from holdfast.errors import HoldfastError, JobError
from holdfast.job.settings import EtcdSettings

LEASE_S: Final = 5
"""Time after which a leader that is silent is replaced, seconds: longer than members of etcd take
to elect a leader of theirs, which is about two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalView:
    """The keys at one moment.

    Attributes:
        leader: The node that leads; empty if none does.
        lease: The lease of the leader.
        revision: The revision at which its key was made.
        coordinator: Address and port where hosts join; empty if none was announced.
        has_journal: False once the run is over, or before it has begun.
        entries: The entries after those that are known.
    """

    leader: str
    lease: str
    revision: int
    coordinator: str
    has_journal: bool
    entries: tuple[str, ...]


class EtcdJournal:
    """The keys of one start of a run. All methods wait for etcd.

    Args:
        settings: The cluster.
        prefix: Prefix of the keys.

    Raises:
        HoldfastError: By all methods, if etcd does not answer.
    """

    def __init__(self, settings: EtcdSettings, prefix: str) -> None:
        self._etcd = EtcdClient(settings)
        self._prefix = prefix

    def view(self, known: int) -> JournalView:
        """The keys as they are now.

        Args:
            known: Number of entries that the caller has.
        """
        ranges: list[Fields] = [
            {"key": self._key("leader")},
            {"key": self._key("coordinator")},
            {"key": self._entry(1), "keys_only": True},
            {"key": self._entry(known + 1), "range_end": self._key("journal0")},
        ]
        # One transaction: the leader and the entries are of the same moment.
        answer = self._etcd.ask("kv/txn", {"success": [{"request_range": each} for each in ranges]})
        leaders, coordinators, begun, entries = (
            each["response_range"].get("kvs", []) for each in answer["responses"]
        )
        leader = leaders[0] if leaders else {}
        return JournalView(
            leader=_value(leader),
            lease=leader.get("lease", "0"),
            revision=int(leader.get("create_revision", 0)),
            coordinator=_value(coordinators[0]) if coordinators else "",
            has_journal=bool(begun),
            entries=tuple(map(_value, entries)),
        )

    def lease(self) -> str:
        """A new lease."""
        return str(self._etcd.ask("lease/grant", {"TTL": str(LEASE_S)})["ID"])

    def renew(self, lease: str) -> bool:
        """Renew a lease; returns False if it has ended."""
        answer = self._etcd.ask("lease/keepalive", {"ID": lease})
        return int(answer["result"].get("TTL", 0)) > 0

    def revoke(self, lease: str) -> None:
        """End a lease, and the leader key with it."""
        self._etcd.ask("lease/revoke", {"ID": lease})

    def begin(self, node: str, lease: str, first: str) -> JournalView:
        """Make a node the leader of a run that begins.

        Args:
            node: Its name.
            lease: Its lease.
            first: The first entry of the journal.
        """
        self._write(
            [_compared(self._entry(1), "EQUAL", "VERSION", 0)],
            [_put(self._key("leader"), node, lease), _put(self._entry(1), first)],
        )
        view = self.view(0)
        if view.leader != node:
            raise HoldfastError("etcd answers too slowly to keep a lease; see its logs")
        return view

    def take(self, node: str, lease: str) -> None:
        """Make a node the leader of a run that has none; `view` tells whether it has become that.

        Args:
            node: Its name.
            lease: Its lease.
        """
        self._write(
            [
                _compared(self._key("leader"), "EQUAL", "CREATE", 0),
                _compared(self._entry(1), "GREATER", "VERSION", 0),
            ],
            [_put(self._key("leader"), node, lease)],
        )

    def append(self, revision: int, number: int, entry: str) -> bool:
        """Append an entry; returns False if the caller leads no longer.

        Args:
            revision: The caller's.
            number: The number of the entry, counted from 1.
            entry: The entry, encoded.
        """
        key = self._entry(number)
        is_free = _compared(key, "EQUAL", "VERSION", 0)
        # No other node writes while the caller leads: what is there may be of an attempt of its own
        # whose answer was lost.
        is_there = {"key": key, "result": "EQUAL", "target": "VALUE", "value": encoded(entry)}
        leads = self._leads(revision)
        return self._write([leads, is_free], [_put(key, entry)]) or self._write(
            [leads, is_there], []
        )

    def announce(self, revision: int, address: str) -> bool:
        """Say where hosts join; returns False if the caller leads no longer."""
        put = _put(self._key("coordinator"), address)
        return self._write([self._leads(revision)], [put])

    def remove(self, revision: int) -> None:
        """Remove all keys, if the caller leads: the run is over."""
        end = self._prefix[:-1] + chr(ord(self._prefix[-1]) + 1)
        keys = {"key": encoded(self._prefix), "range_end": encoded(end)}
        self._write([self._leads(revision)], [{"request_delete_range": keys}])

    def _write(self, compare: list[Fields], success: list[Fields]) -> bool:
        answer = self._etcd.ask("kv/txn", {"compare": compare, "success": success})
        return bool(answer.get("succeeded", False))

    def _leads(self, revision: int) -> Fields:
        return _compared(self._key("leader"), "EQUAL", "CREATE", revision)

    def _entry(self, number: int) -> str:
        return self._key(f"journal/{number:08}")

    def _key(self, name: str) -> str:
        return encoded(f"{self._prefix}{name}")


def _value(found: Any) -> str:
    return decoded(found.get("value", ""))


def _compared(key: str, result: str, target: str, number: int) -> Fields:
    field = {"CREATE": "create_revision", "VERSION": "version"}[target]
    return {"key": key, "result": result, "target": target, field: str(number)}


def _put(key: str, value: str, lease: str = "0") -> Fields:
    return {"request_put": {"key": key, "value": encoded(value), "lease": lease}}


TRY_TIMEOUT_S: Final = 1.0
"""Time in which one member answers, or the next one is asked."""

Fields: TypeAlias = Mapping[str, Any]
"""A message as JSON."""


class EtcdClient:
    """Asks the members of a cluster in turn; each request has a connection of its own.

    It uses the JSON gateway of the v3 API: keys and values are base64, 64-bit numbers are strings,
    and fields that are zero are absent. See
    https://etcd.io/docs/v3.4/dev-guide/api_grpc_gateway/.

    Args:
        settings: Their addresses and certificates.

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
