"""Workers of different hosts connect if they know the generation's key, and every wait ends."""

import socket
import threading

import pytest

from holdfast.arena.memory import Arena
from holdfast.arena.worker_status import WorkerStatus
from holdfast.errors import Aborted, HoldfastError
from holdfast.transport.connections import Listener, Peers
from holdfast.transport.tcp import Deadline, transfer

KEY = b"k" * 32


@pytest.fixture
def arena():
    made = Arena.create(1)
    made.enter_generation(0, 1)
    yield made
    made.close()


@pytest.fixture
def listeners():
    made = [Listener("127.0.0.1"), Listener("127.0.0.1")]
    yield made
    for each in made:
        each.close()


def deadline_of(arena, timeout_s=20):
    return Deadline(arena.check_abort, timeout_s, WorkerStatus(arena, 0))


def peers(host, listeners, key=KEY, generation=1):
    address = listeners[1 - host].address
    return Peers(generation=generation, key=key, host=host, addresses={(1 - host, 0): address})


def connect(arena, listeners, *offers):
    """Connect from several threads at once; returns what each got, or its error."""
    found = {}

    def run(number, offer):
        try:
            found[number] = listeners[offer.host].connect(offer, deadline_of(arena, 1))
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
        transfer([flow], deadline_of(arena), "the test")

    back = [bytearray(len(each)) for each in content]
    other = threading.Thread(target=exchange, args=(connected[1], content[::-1], received))
    other.start()
    exchange(connected[0], content, back[::-1])
    other.join()
    assert [bytes(each) for each in received] == content
    assert [bytes(each) for each in back] == content


@pytest.mark.parametrize("difference", [{"key": b"x" * 32}, {"generation": 2}])
def test_those_of_another_key_or_generation_do_not_get_a_connection(arena, listeners, difference):
    found = connect(arena, listeners, peers(0, listeners), peers(1, listeners, **difference))
    assert all("waited 1 s for " in str(each) for each in found), found


def test_strangers_do_not_keep_the_others_from_connecting(arena, listeners):
    address, _, port = listeners[0].address.rpartition(":")
    strangers = [socket.create_connection((address, int(port))) for _ in range(3)]
    strangers[0].sendall(b"GET / HTTP/1.1\r\n\r\n" + bytes(1000))
    strangers[1].close()  # the third says nothing at all
    listening = deadline_of(arena, 20)
    found = {}
    accepting = threading.Thread(
        target=lambda: found.update(listeners[0].connect(peers(0, listeners), listening))
    )
    accepting.start()
    mine = listeners[1].connect(peers(1, listeners), deadline_of(arena))
    accepting.join()
    assert list(found) == [(1, 0)]
    for each in (*strangers, *found.values(), *mine.values()):
        each.close()


@pytest.mark.parametrize("is_lost", [False, True])
def test_an_abort_ends_a_transfer(arena, connected, is_lost):
    if is_lost:  # that alone is no verdict
        connected[1].close()
    threading.Timer(0.2, lambda: arena.announce(2)).start()
    flow = connected[0], iter([]), iter([memoryview(bytearray(8))])
    with pytest.raises(Aborted):
        transfer([flow], deadline_of(arena), "the test")
