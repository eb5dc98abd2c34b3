"""Workers of different hosts connect if they know the generation's key and, unless their network is
trusted, show a certificate of a worker of the run; and every wait ends.
"""

import os
import random
import socket
import threading

import pytest

from conftest import sampled
from holdfast.arena.memory import Arena
from holdfast.arena.worker_status import WorkerStatus
from holdfast.collectives import tcp
from holdfast.collectives.connections import Listener, Peers
from holdfast.collectives.tcp import Deadline, transfer
from holdfast.coordinator.authority import Authority
from holdfast.errors import Aborted, HoldfastError
from holdfast.wire.tls import Role

KEY = b"k" * 32


@pytest.fixture
def arena():
    made = Arena.create(1)
    made.enter_generation(0, 1)
    yield made
    made.close()


@pytest.fixture(scope="session")
def authority(tmp_path_factory):
    return Authority.create(tmp_path_factory.mktemp("authority"))


@pytest.fixture(params=["tls", "trusted"])
def listeners(request, authority):
    is_tls = request.param == "tls"
    made = [
        Listener("127.0.0.1", authority.issue(f"host-{number}", Role.DATA) if is_tls else None)
        for number in range(2)
    ]
    yield made
    for each in made:
        each.close()


def ignore(place, *, is_broken):
    """Reports of slow peers, on a machine that is busy."""


def deadline_of(arena, timeout_s=20, report=ignore):
    return Deadline(arena.check_abort, timeout_s, WorkerStatus(arena, 0), report)


def peers(host, listeners, key=KEY, generation=1):
    address = listeners[1 - host].address
    return Peers(generation=generation, key=key, host=host, addresses={(1 - host, 0): address})


def connect(arena, listeners, *offers, timeout_s=20):
    """Connect from several threads at once; returns what each got, or its error."""
    found = {}

    def run(number, offer):
        try:
            found[number] = listeners[offer.host].connect(offer, deadline_of(arena, timeout_s))
        except HoldfastError as error:
            found[number] = error

    threads = [threading.Thread(target=run, args=each) for each in enumerate(offers)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return [found[number] for number in range(len(offers))]


@pytest.fixture
def connected(arena, listeners):
    first, second = connect(arena, listeners, peers(0, listeners), peers(1, listeners))
    yield first[1, 0], second[0, 0]
    first[1, 0].close()
    second[0, 0].close()


def test_buffers_arrive_in_order_whatever_their_sizes(arena, connected):
    content = [bytes([number]) * size for number, size in enumerate([1, 3_000_000, 0, 7, 600_000])]
    received = [bytearray(len(each)) for each in content]

    def exchange(connection, sends, receives):
        flow = connection, map(memoryview, sends), map(memoryview, receives)
        transfer({(1, 0): flow}, deadline_of(arena), "the test")

    back = [bytearray(len(each)) for each in content]
    other = threading.Thread(target=exchange, args=(connected[1], content[::-1], received))
    other.start()
    exchange(connected[0], content, back[::-1])
    other.join()
    assert [bytes(each) for each in received] == content
    assert [bytes(each) for each in back] == content


@pytest.mark.parametrize("difference", [{"key": b"x" * 32}, {"generation": 2}])
def test_those_of_another_key_or_generation_do_not_get_a_connection(arena, listeners, difference):
    found = connect(
        arena, listeners, peers(0, listeners), peers(1, listeners, **difference), timeout_s=0.2
    )
    assert all("waited 0 s for " in str(each) for each in found), found


def connect_among(arena, listeners, disturb):
    """Connect while something else happens at the accepting end."""
    address, _, port = listeners[0].address.rpartition(":")
    accepting, found = threading.Event(), {}

    def accept():
        accepting.set()
        found.update(listeners[0].connect(peers(0, listeners), deadline_of(arena)))

    thread = threading.Thread(target=accept)
    thread.start()
    accepting.wait(20)
    kept = disturb((address, int(port)))
    mine = listeners[1].connect(peers(1, listeners), deadline_of(arena))
    thread.join()
    assert list(found) == [(1, 0)]
    for each in (*kept, *found.values(), *mine.values()):
        each.close()


def test_strangers_do_not_keep_the_others_from_connecting(arena, listeners):
    def disturb(address):
        strangers = [socket.create_connection(address) for _ in range(80)]
        strangers[0].sendall(b"GET / HTTP/1.1\r\n\r\n" + bytes(1000))
        strangers[1].close()
        strangers[2].sendall(b"\x16\x03\x01")
        return strangers  # the others say nothing at all

    connect_among(arena, listeners, disturb)


@pytest.mark.parametrize("count", sampled([50, 1000], 0))
def test_nonsense_does_not_keep_the_others_from_connecting(arena, listeners, count):
    def disturb(address):
        draw = random.Random(count)
        for _ in range(count):
            with socket.create_connection(address) as stranger:
                start = draw.choice([b"", b"\x16\x03\x01\x02\x00\x01", b"holdfast\0\0\0\0\0\0\0\1"])
                stranger.sendall(start + os.urandom(draw.randrange(200)))
        return []

    connect_among(arena, listeners, disturb)


@pytest.mark.parametrize(
    ("run", "role"), [("this", Role.AGENT), ("this", Role.COORDINATOR), ("another", Role.DATA)]
)
@pytest.mark.parametrize("accepts", [False, True])
def test_other_certificates_than_those_of_workers_of_the_run_do_not_connect(
    arena, authority, tmp_path, run, role, accepts
):
    signing = authority if run == "this" else Authority.create(tmp_path)
    odd = Listener("127.0.0.1", signing.issue("odd", role))
    good = Listener("127.0.0.1", authority.issue("good", Role.DATA))
    listeners = [odd, good] if accepts else [good, odd]
    found = connect(arena, listeners, peers(0, listeners), peers(1, listeners), timeout_s=0.2)
    assert isinstance(found[1 if accepts else 0], HoldfastError), found
    for each in listeners:
        each.close()


def test_one_end_alone_in_plain_does_not_connect(arena, authority):
    listeners = [Listener("127.0.0.1", authority.issue("good", Role.DATA)), Listener("127.0.0.1")]
    found = connect(arena, listeners, peers(0, listeners), peers(1, listeners), timeout_s=0.2)
    assert all(isinstance(each, HoldfastError) for each in found), found
    for each in listeners:
        each.close()


@pytest.mark.parametrize("is_lost", [False, True])
def test_an_abort_ends_a_transfer(arena, connected, is_lost):
    if is_lost:  # that alone is no verdict
        connected[1].close()
    threading.Timer(0.2, lambda: arena.announce(2)).start()
    flow = connected[0], iter([]), iter([memoryview(bytearray(8))])
    with pytest.raises(Aborted):
        transfer({(1, 0): flow}, deadline_of(arena), "the test")


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_peer_that_does_not_send_is_reported(arena, connected, is_lost, monkeypatch):
    monkeypatch.setattr(tcp, "STALL_S", 0.05)
    if is_lost:
        connected[1].close()
    reports = []

    def report(place, *, is_broken):
        reports.append((place, is_broken))
        arena.announce(2)

    flow = connected[0], iter([]), iter([memoryview(bytearray(8))])
    with pytest.raises(Aborted):
        transfer({(1, 0): flow}, deadline_of(arena, report=report), "the test")
    assert reports == [((1, 0), is_lost)]


def test_a_peer_that_does_not_connect_is_reported(arena, listeners, monkeypatch):
    monkeypatch.setattr(tcp, "STALL_S", 0.05)
    reports = []

    def report(place, *, is_broken):
        reports.append((place, is_broken))
        arena.announce(2)

    with pytest.raises(Aborted):
        listeners[0].connect(peers(0, listeners), deadline_of(arena, report=report))
    assert reports == [((1, 0), False)]
