"""The checkpoints of hosts reach a coordinator over real sockets, whatever is lost meanwhile."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

import grpc
import pytest

from checkpoints import layout_of, restore, save, state_of, store_in
from conftest import events_of, wait_until
from holdfast.checkpoint import retention
from holdfast.checkpoint.manifest import Best
from holdfast.checkpoint.transfer import described, pieces
from holdfast.coordinator import checkpoint_server, collected_checkpoints
from holdfast.coordinator.checkpoint_server import CheckpointServer
from holdfast.coordinator.collected_checkpoints import CollectedCheckpoints
from holdfast.core.checkpoints.retention import RetentionPolicy
from holdfast.errors import JobError
from holdfast.rundir.json_lines import EventLog
from holdfast.runs.hosts.checkpoint_fetch import provide
from holdfast.runs.hosts.collector import Collector
from holdfast.wire.checkpoint_service import (
    CheckpointService,
    OfferedMessage,
    OfferResult,
    checkpoint_handlers,
)
from holdfast.wire.rpc import OPTIONS, open_channel

pytestmark = pytest.mark.slow

LAYOUT = layout_of()
STATE = state_of(LAYOUT)


class Coordinator:
    """A coordinator that hosts reach at an address for each of them."""

    def __init__(self, folder):
        self.run_dir = folder / "there"
        self.run_dir.mkdir(exist_ok=True)
        self._folder = os.path.relpath(folder)
        self._up, self._loop, self._down = threading.Event(), None, None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self._thread.start()
        assert self._up.wait(30)

    def of(self, host):
        return f"unix:{self._folder}/{host}.sock"

    @property
    def steps(self):
        return [int(name.removeprefix("step-")) for name in self.store.committed()]

    @property
    def store(self):
        return store_in(self.run_dir / "checkpoints")

    def events(self, name):
        return events_of(self.run_dir, name)

    def close(self):
        self._loop.call_soon_threadsafe(self._down.set)
        self._thread.join(30)

    async def _serve(self):
        self._loop, self._down = asyncio.get_running_loop(), asyncio.Event()
        with (
            EventLog(self.run_dir / "events.jsonl") as log,
            CollectedCheckpoints(self.run_dir, "0c", RetentionPolicy(last=2), log) as checkpoints,
        ):
            servers = [await self._server(checkpoints, host) for host in ("a", "b")]
            self.checkpoints = checkpoints
            self._up.set()
            await self._down.wait()
            for server in servers:
                await server.stop(None)

    async def _server(self, checkpoints, host):
        async def host_of(_context):
            return host

        server = grpc.aio.server(options=OPTIONS)
        handlers = CheckpointServer(checkpoints, host_of, lambda: None, print).handlers()
        server.add_generic_rpc_handlers((handlers,))
        server.add_insecure_port(self.of(host))
        await server.start()
        return server


@pytest.fixture
def coordinator(tmp_path, monkeypatch):
    monkeypatch.setattr(retention, "REST", 0)  # nothing is kept because it was read before
    with closing(Coordinator(tmp_path)) as started:
        yield started


@pytest.fixture
def write(tmp_path):
    """Write a checkpoint on a host: `write(host, step, seed=0, field=value, …) -> directory`."""

    def to(host, step, seed=0, **fields):
        flat = STATE if seed == 0 else state_of(LAYOUT, seed)
        return save(tmp_path / host / "checkpoints", step, flat, LAYOUT, **fields)

    return to


@contextmanager
def service_of(coordinator, host):
    with open_channel(coordinator.of(host), None) as channel:
        yield CheckpointService(channel)


def newest_of(run_dir):
    store = store_in(run_dir / "checkpoints")
    return store, described(store.manifest(store.committed()[0]))


def test_the_newest_checkpoint_is_sent_by_one_host_and_old_ones_are_deleted(
    coordinator, write, tmp_path
):
    for host in ("a", "b"):
        write(host, 1)
        write(host, 2)
    with (
        closing(Collector(tmp_path / "a", lambda: coordinator.of("a"), None)) as first,
        closing(Collector(tmp_path / "b", lambda: coordinator.of("b"), None)) as second,
    ):
        wait_until(lambda: coordinator.steps == [2])
        write("a", 3)
        wait_until(lambda: coordinator.steps == [3, 2])
        write("b", 4)
        first.finish(lambda: False)
        second.finish(lambda: False)
        assert coordinator.steps[:2] == [4, 3]
        wait_until(lambda: coordinator.steps == [4, 3])
    assert [event["step"] for event in coordinator.events("checkpoint-collected")] == [2, 3, 4]
    assert coordinator.events("checkpoint-not-collected") == []
    restore(coordinator.run_dir / "checkpoints" / "step-00000004", LAYOUT)


def test_the_checkpoint_of_the_best_evaluation_is_kept(coordinator, write, tmp_path):
    with closing(Collector(tmp_path / "a", lambda: coordinator.of("a"), None)):
        for step in range(1, 6):
            write("a", step, best=Best(value=0.5, step=2 if step > 1 else 1))
            wait_until(lambda step=step: coordinator.steps[:1] == [step])
        wait_until(lambda: coordinator.steps == [5, 4, 2])


SENDER = """
import sys, time
from pathlib import Path
from holdfast.checkpoint.store import CheckpointStore
from holdfast.checkpoint.transfer import newest_described, pieces
from holdfast.wire.checkpoint_service import CheckpointService
from holdfast.wire.rpc import open_channel

store = CheckpointStore.of_run(Path(sys.argv[2]))
offered = newest_described(store)

def some():
    for number, piece in enumerate(pieces(store, offered)):
        if number == 5:
            print("half", flush=True)
            time.sleep(600)
        yield piece

with open_channel(sys.argv[1], None) as channel:
    service = CheckpointService(channel)
    print(service.offer(offered, timeout=10).result, flush=True)
    service.send(some(), timeout=600)
"""


def test_another_host_sends_in_place_of_one_that_is_killed_while_it_sends(
    coordinator, write, tmp_path
):
    write("a", 2)
    write("b", 2)
    command = [sys.executable, "-c", SENDER, coordinator.of("a"), str(tmp_path / "a")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as sender:
        assert [sender.stdout.readline(), sender.stdout.readline()] == ["send\n", "half\n"]
        with closing(Collector(tmp_path / "b", lambda: coordinator.of("b"), None)) as other:
            with service_of(coordinator, "b") as service:
                _, offered = newest_of(tmp_path / "b")
                assert service.offer(offered, timeout=10).result is OfferResult.LATER
            os.kill(sender.pid, signal.SIGKILL)
            other.finish(lambda: False)
    (arrived,) = coordinator.events("checkpoint-collected")
    assert (arrived["step"], arrived["sender"]) == (2, "b")
    assert len(coordinator.events("checkpoint-not-collected")) == 1
    assert coordinator.store.storage.names().count("step-00000002") == 1
    assert not [name for name in coordinator.store.storage.names() if name.endswith(".tmp")]


def test_a_host_that_sends_nothing_makes_room_for_another(
    coordinator, write, tmp_path, monkeypatch
):
    monkeypatch.setattr(checkpoint_server, "PIECE_TIMEOUT_S", 0.2)
    write("a", 2)
    store, offered = newest_of(tmp_path / "a")
    silent = threading.Event()

    def some():
        yield next(pieces(store, offered))
        silent.wait(60)

    with service_of(coordinator, "a") as service:
        assert service.offer(offered, timeout=10).result is OfferResult.SEND
        with pytest.raises(grpc.RpcError, match="gone, or too slow"):
            service.send(some(), timeout=60)
    silent.set()
    with closing(Collector(tmp_path / "a", lambda: coordinator.of("b"), None)) as other:
        other.finish(lambda: False)
    assert coordinator.steps == [2]


def test_a_damaged_piece_and_a_checkpoint_that_was_not_asked_for_are_refused(
    coordinator, write, tmp_path
):
    write("a", 2)
    store, offered = newest_of(tmp_path / "a")
    stream = list(pieces(store, offered))
    stream[9] = bytes([stream[9][0] ^ 1]) + stream[9][1:]
    with service_of(coordinator, "a") as service:
        with pytest.raises(grpc.RpcError, match="not asked for"):
            service.send(iter(stream), timeout=60)
        assert service.offer(offered, timeout=10).result is OfferResult.SEND
        with service_of(coordinator, "b") as other:
            assert other.offer(offered, timeout=10).result is OfferResult.LATER
            with pytest.raises(grpc.RpcError, match="not asked for"):
                other.send(iter(stream), timeout=60)
        with pytest.raises(grpc.RpcError, match="chunk 0 does not match its digest"):
            service.send(iter(stream), timeout=60)
    assert coordinator.store.storage.names() == []


def test_a_coordinator_that_is_replaced_goes_on_with_what_it_has(write, tmp_path):
    write("a", 2)
    with closing(Coordinator(tmp_path)) as first:
        with closing(Collector(tmp_path / "a", lambda: first.of("a"), None)) as sender:
            sender.finish(lambda: False)
        torn = first.run_dir / "checkpoints" / "step-00000003.0c.tmp"
        torn.mkdir()
    with closing(Coordinator(tmp_path)) as second:
        assert not torn.exists()
        with closing(Collector(tmp_path / "a", lambda: second.of("a"), None)) as sender:
            sender.finish(lambda: False)
            write("a", 5)
            write("a", 4, seed=1)
        with closing(Collector(tmp_path / "a", lambda: second.of("a"), None)) as sender:
            sender.finish(lambda: False)
        assert [event["step"] for event in second.events("checkpoint-collected")] == [2, 5]


def test_a_full_disk_is_an_event_and_keeps_space_for_the_journal(
    coordinator, write, tmp_path, monkeypatch
):
    write("a", 2)
    with monkeypatch.context() as full:
        full.setattr(collected_checkpoints, "RESERVED_BYTES", 1 << 60)
        with closing(Collector(tmp_path / "a", lambda: coordinator.of("a"), None)) as sender:
            sender.finish(lambda: False)
            wait_until(lambda: coordinator.events("checkpoint-not-collected"))
    (event,) = coordinator.events("checkpoint-not-collected")
    assert event["step"] == 2
    assert "bytes free" in event["reason"]
    assert coordinator.steps == []


def test_the_end_does_not_wait_for_a_coordinator_that_is_gone(write, tmp_path, monkeypatch):
    monkeypatch.setattr("holdfast.runs.hosts.collector.OFFER_TIMEOUT_S", 0.3)
    write("a", 2)
    address = f"unix:{os.path.relpath(tmp_path)}/nobody"
    with closing(Collector(tmp_path / "a", lambda: address, None)) as sender:
        sender.finish(lambda: False)


@pytest.fixture
def moved_to(tmp_path):
    """A second coordinator."""
    (tmp_path / "moved-to").mkdir()
    with closing(Coordinator(tmp_path / "moved-to")) as started:
        yield started


def test_a_coordinator_that_the_run_has_moved_to_gets_the_newest_checkpoint(
    coordinator, moved_to, write, tmp_path
):
    target = coordinator.of("a")
    write("a", 2)
    with closing(Collector(tmp_path / "a", lambda: target, None)) as sender:
        wait_until(lambda: coordinator.steps == [2])
        target = moved_to.of("a")
        wait_until(lambda: moved_to.steps == [2])
        write("a", 3)
        sender.finish(lambda: False)
    assert (coordinator.steps, moved_to.steps) == ([2], [3, 2])


@contextmanager
def hanging(address):
    """A coordinator that asks for checkpoints and never has all of one; yields what has begun."""
    begun, over = threading.Event(), threading.Event()

    def send(_pieces, _context):
        begun.set()
        assert over.wait(60)
        return OfferedMessage(result=OfferResult.STORED)

    server = grpc.server(ThreadPoolExecutor(4), options=OPTIONS)
    handlers = checkpoint_handlers(
        lambda *_: OfferedMessage(result=OfferResult.SEND), send, lambda *_: iter(())
    )
    server.add_generic_rpc_handlers((handlers,))
    server.add_insecure_port(address)
    server.start()
    try:
        yield begun
    finally:
        over.set()
        server.stop(None).wait()


@pytest.mark.parametrize("is_at_end", [False, True])
def test_sending_to_a_coordinator_that_hangs_ends_with_the_move(
    moved_to, write, tmp_path, is_at_end
):
    first = target = f"unix:{os.path.relpath(tmp_path)}/hanging"
    write("a", 2)
    with (
        hanging(first) as begun,
        closing(Collector(tmp_path / "a", lambda: target, None)) as sender,
    ):
        assert begun.wait(60)
        with ThreadPoolExecutor(1) as pool:
            ending = pool.submit(sender.finish, lambda: False) if is_at_end else None
            target = moved_to.of("a")
            wait_until(lambda: moved_to.steps == [2])
            if ending is not None:
                ending.result()


def test_nothing_is_sent_while_this_host_coordinates(coordinator, write, tmp_path):
    target, looks = "", 0

    def address():
        nonlocal looks
        looks += 1
        return target

    write("a", 2)
    with closing(Collector(tmp_path / "a", address, None)) as sender:
        wait_until(lambda: looks > 2)
        assert coordinator.steps == []
        target = coordinator.of("a")
        wait_until(lambda: coordinator.steps == [2])
        target = ""
        write("a", 3)
        sender.finish(lambda: False)
    assert coordinator.steps == [2]


def test_a_host_without_a_checkpoint_gets_that_of_the_coordinator(coordinator, write, tmp_path):
    write("there", 3)
    write("a", 2)
    _, offered = newest_of(coordinator.run_dir)
    with EventLog(tmp_path / "a" / "events.jsonl") as log:
        for _ in range(2):
            provide(tmp_path / "a", offered, coordinator.of("a"), None, log, host="a")
    restore(tmp_path / "a" / "checkpoints" / "step-00000003", LAYOUT)
    assert [event["step"] for event in events_of(tmp_path / "a")] == [3]


def test_a_damaged_copy_is_not_provided_and_an_older_one_takes_its_place(write, tmp_path):
    write("there", 3)
    with (write("there", 4) / "part-1-of-2.safetensors").open("r+b") as part:
        part.write(b"damage")
    with closing(Coordinator(tmp_path)) as coordinator, EventLog(tmp_path / "events") as log:
        _, offered = newest_of(coordinator.run_dir)
        with pytest.raises(JobError, match=r"step 4 did not arrive .*damaged header"):
            provide(tmp_path / "a", offered, coordinator.of("a"), None, log, host="a")
        assert store_in(tmp_path / "a" / "checkpoints").storage.names() == []
        assert [event["step"] for event in coordinator.events("checkpoint-unreadable")] == [4]
        older = coordinator.checkpoints.newest
        provide(tmp_path / "a", older, coordinator.of("a"), None, log, host="a")
    restore(tmp_path / "a" / "checkpoints" / "step-00000003", LAYOUT)
