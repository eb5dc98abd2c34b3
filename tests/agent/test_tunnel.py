"""The tunnel of an agent connects members of its run to what its own workers listen on."""

import socket
import ssl
import struct
from contextlib import ExitStack, closing

import pytest

from conftest import wait_until
from holdfast.agent.tunnel import MAX_HANDSHAKES, Tunnel
from holdfast.coordinator.authority import Authority
from holdfast.wire.messages import LoopbackAddress, OpenTunnelMessage, Route
from holdfast.wire.tls import Role

HOME = "127.77.0.1"


@pytest.fixture
def authority(tmp_path):
    (tmp_path / "secrets").mkdir()
    return Authority.create(tmp_path / "secrets")


@pytest.fixture
def tunnel(authority):
    with closing(Tunnel("127.0.0.1", authority.issue("first", Role.DATA))) as made:
        yield made


@pytest.fixture
def worker():
    """A socket that listens where gloo would."""
    with socket.create_server((HOME, 0)) as listening:
        listening.settimeout(10)
        yield listening


def place(worker):
    return LoopbackAddress(address=HOME, port=worker.getsockname()[1])


def expose(tunnel, worker, generation=1):
    wanted = OpenTunnelMessage(generation=generation, exposed=(place(worker),), routes=())
    assert tunnel.open(wanted).error == ""


def connect(tunnel, credentials, worker, generation=1):
    """Connect as another agent does, and ask for the worker."""
    host, _, port = tunnel.address.partition("/")[0].rpartition(":")
    plain = socket.create_connection((host, int(port)), timeout=10)
    encrypted = credentials.client_context().wrap_socket(plain)
    number = worker.getsockname()[1]
    encrypted.sendall(
        struct.pack("!8sQ4sH", b"hftunnel", generation, socket.inet_aton(HOME), number)
    )
    return encrypted


def is_closed(connection):
    try:
        return connection.recv(1) == b""
    except (ConnectionError, ssl.SSLError):
        return True


def test_both_directions_are_carried_until_one_end_closes(tunnel, authority, worker):
    expose(tunnel, worker)
    with connect(tunnel, authority.issue("second", Role.DATA), worker) as remote:
        local, _ = worker.accept()
        with local:
            remote.sendall(b"a" * 1_000_000)
            assert len(local.recv(1_000_000, socket.MSG_WAITALL)) == 1_000_000
            local.sendall(b"the end")
        assert remote.recv(100) == b"the end"
        assert is_closed(remote)


def test_only_what_workers_of_the_newest_generation_listen_on_is_reached(tunnel, authority, worker):
    own = authority.issue("second", Role.DATA)
    expose(tunnel, worker, generation=2)
    with socket.create_server((HOME, 0)) as other, connect(tunnel, own, other, 2) as remote:
        assert is_closed(remote)
    with connect(tunnel, own, worker, generation=1) as remote:
        assert is_closed(remote)
    assert tunnel.num_refused == 2


def test_the_end_of_a_generation_ends_its_connections(tunnel, authority, worker):
    expose(tunnel, worker)
    with connect(tunnel, authority.issue("second", Role.DATA), worker) as remote:
        local, _ = worker.accept()
        with local:
            tunnel.end(2)
            assert is_closed(remote)
            assert is_closed(local)
    expose(tunnel, worker, generation=1)  # asked for too late
    with connect(tunnel, authority.issue("second", Role.DATA), worker) as remote:
        assert is_closed(remote)


def test_a_stranger_is_refused(tunnel, tmp_path, worker):
    expose(tunnel, worker)
    (tmp_path / "other").mkdir()
    stranger = Authority.create(tmp_path / "other").issue("second", Role.DATA)
    with pytest.raises((ssl.SSLError, ConnectionError)):
        connect(tunnel, stranger, worker).recv(1)
    worker.settimeout(0)
    with pytest.raises(BlockingIOError):
        worker.accept()


def test_strangers_that_say_nothing_keep_no_one_out(tunnel, authority, worker):
    expose(tunnel, worker)
    host, _, port = tunnel.address.partition("/")[0].rpartition(":")
    with ExitStack() as silent:
        for _ in range(2 * MAX_HANDSHAKES):
            silent.enter_context(socket.create_connection((host, int(port))))
        with connect(tunnel, authority.issue("second", Role.DATA), worker) as remote:
            local, _ = worker.accept()
            with local:
                remote.sendall(b"word")
                assert local.recv(4) == b"word"
        wait_until(lambda: tunnel.num_refused >= MAX_HANDSHAKES)


def test_a_port_in_use_is_named(tunnel, worker):
    route = Route(to=place(worker), tunnel="10.0.0.1:1/elsewhere")
    answer = tunnel.open(OpenTunnelMessage(generation=1, exposed=(), routes=(route,)))
    assert f"port {route.to.port} of {HOME}" in answer.error
    wait_until(
        lambda: tunnel.open(OpenTunnelMessage(generation=2, exposed=(), routes=())).error == ""
    )


@pytest.mark.parametrize("address", ["10.0.0.1", "127.0.0.1", "127.77.0.2", "127.77.0.1x"])
def test_only_the_addresses_of_process_groups_can_be_named(address):
    with pytest.raises(ValueError, match="address"):
        LoopbackAddress(address=address, port=1)
