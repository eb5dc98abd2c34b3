"""The logs of a host arrive whole at a coordinator that may be away for a while."""

import asyncio
import json
import os
import threading
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import grpc
import pytest

from conftest import wait_until
from holdfast.coordinator.host_files import HostFiles
from holdfast.rundir.follow import StepTail
from holdfast.rundir.json_lines import EventLog
from holdfast.rundir.system_file import SystemFile
from holdfast.runs.hosts.shipper import Shipper, ends_of
from holdfast.wire.rpc import MAX_SHIPPED_BYTES, OPTIONS, handlers
from system_samples import SAMPLE

pytestmark = pytest.mark.slow


@pytest.fixture
def there(tmp_path):
    """The coordinator's run directory."""
    (tmp_path / "there" / "logs").mkdir(parents=True)
    return tmp_path / "there"


@pytest.fixture
def here(tmp_path):
    """A host's run directory, with what was logged before the host joined."""
    (tmp_path / "here" / "logs").mkdir(parents=True)
    (tmp_path / "here" / "logs" / "rank-1.log").write_text("before\n")
    return tmp_path / "here"


@contextmanager
def coordinator(there, address, *, collects=False, hangs=False):
    """A coordinator that takes logs while the block runs; yields the messages that it has got."""
    up, down = threading.Event(), asyncio.Event()
    received = []

    async def serve():
        nonlocal loop
        loop = asyncio.get_running_loop()
        with EventLog(there / "events.jsonl") as log:
            files = HostFiles(there, log, collects=collects)

            async def ship(message, _context):
                received.append(message)
                if hangs:
                    await down.wait()
                return files.receive("h2", message)

            server = grpc.aio.server(options=OPTIONS)
            server.add_generic_rpc_handlers((handlers(ship, ship, ship, ship, ship),))
            server.add_insecure_port(address)
            await server.start()
            up.set()
            await down.wait()
            await server.stop(None)

    loop = None
    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert up.wait(30)
    try:
        yield received
    finally:
        loop.call_soon_threadsafe(down.set)
        thread.join(30)


def test_what_is_logged_after_joining_arrives_whole_and_once(here, there, tmp_path):
    address = f"unix:{os.path.relpath(tmp_path)}/socket"
    log = here / "logs" / "rank-1.log"
    positions, logged = ends_of(here), b""

    def write(content):
        nonlocal logged
        logged += content
        with log.open("ab") as file:
            file.write(content)

    def arrived(content):
        path = there / "logs" / "rank-1.log"
        return path.exists() and path.read_bytes() == content

    with Shipper(here, lambda: address, None, positions):
        write(b"one\n")  # nobody listens yet
        (here / "logs" / "rank-1.stacks").write_text("not sent\n")
        with coordinator(there, address):
            wait_until(lambda: arrived(b"one\n"))
            write(b"x" * (2 * MAX_SHIPPED_BYTES) + b"\n")
            wait_until(lambda: arrived(logged))
            write(b"half of a line")
        write(b", and the rest\n")
        with coordinator(there, address):
            wait_until(lambda: arrived(logged))
    assert [path.name for path in (there / "logs").iterdir()] == ["rank-1.log"]


def test_the_end_sends_what_is_left_also_of_a_line(here, there, tmp_path):
    address = f"unix:{os.path.relpath(tmp_path)}/socket"
    with coordinator(there, address):
        with Shipper(here, lambda: address, None, ends_of(here)):
            with EventLog(here / "events.jsonl") as events:
                events.event("worker-started", rank=1, pid=7)
            with (here / "logs" / "rank-1.log").open("a") as log:
                log.write("no end")
        assert (there / "logs" / "rank-1.log").read_text() == "no end"
        (line,) = (there / "events.jsonl").read_text().splitlines()
        assert json.loads(line)["event"] == "worker-started"


def test_samples_of_a_host_arrive_also_after_the_file_was_replaced(here, there, tmp_path):
    address = f"unix:{os.path.relpath(tmp_path)}/socket"

    def sample(time_unix_s):
        return replace(SAMPLE, host="h2", time_unix_s=time_unix_s)

    def arrived(time_unix_s):
        newest = SystemFile(there).newest().get("h2")
        return newest is not None and newest.time_unix_s == time_unix_s

    SystemFile(here).add([sample(1.0)])  # before it joined
    with Shipper(here, lambda: address, None, ends_of(here)):
        SystemFile(here).add([sample(2.0), sample(3.0)])
        with coordinator(there, address):
            wait_until(lambda: arrived(3.0))
            (here / "system.jsonl").unlink()
            SystemFile(here).add([sample(4.0)])
            wait_until(lambda: arrived(4.0))
    assert len((there / "system.jsonl").read_text().splitlines()) == 3


@pytest.fixture
def moved_to(tmp_path):
    """The run directory of a second coordinator."""
    (tmp_path / "moved-to" / "logs").mkdir(parents=True)
    return tmp_path / "moved-to"


def addresses(tmp_path):
    return [f"unix:{os.path.relpath(tmp_path)}/{name}" for name in ("first", "second")]


@pytest.mark.parametrize("is_gone", [False, True])
def test_after_a_move_the_new_coordinator_gets_all_that_the_old_one_has_not(
    here, there, moved_to, tmp_path, is_gone
):
    first, second = addresses(tmp_path)
    target = first
    positions = ends_of(here)
    log = here / "logs" / "rank-1.log"
    old, new = there / "logs" / "rank-1.log", moved_to / "logs" / "rank-1.log"

    def write(content):
        with log.open("a") as file:
            file.write(content)

    with (
        coordinator(moved_to, second) as received,
        ExitStack() as first_serves,
        Shipper(here, lambda: target, None, positions),
    ):
        first_serves.enter_context(coordinator(there, first))
        write("one\n")
        wait_until(lambda: positions == ends_of(here))
        if is_gone:
            first_serves.close()
            write("two\n")
        target = second
        wait_until(lambda: received)
        write("three\n")
    assert old.read_text() == "one\n"
    assert new.read_text() == ("two\nthree\n" if is_gone else "three\n")
    # It waits for the end of what has begun, so it was told of both.
    assert (received[0].content, received[0].is_last) == ("", False)
    assert [message.is_last for message in received].index(True) == len(received) - 1


def test_a_call_to_a_coordinator_that_hangs_ends_with_the_move(
    here, there, moved_to, tmp_path, monkeypatch
):
    first, second = addresses(tmp_path)
    target = first
    new = moved_to / "logs" / "rank-1.log"
    with coordinator(there, first, hangs=True) as hung, coordinator(moved_to, second):
        monkeypatch.setattr("holdfast.runs.hosts.shipper.FLUSH_TIMEOUT_S", 600)
        with Shipper(here, lambda: target, None, ends_of(here)):
            wait_until(lambda: hung)
            with (here / "logs" / "rank-1.log").open("a") as log:
                log.write("one\n")
            target = second
            wait_until(lambda: new.exists() and new.read_text() == "one\n")


def test_what_this_host_logs_while_it_coordinates_is_sent_to_nobody(here, there, tmp_path):
    first, second = addresses(tmp_path)
    target = first
    positions, steps = ends_of(here), StepTail(here / "metrics.jsonl")
    log = here / "logs" / "rank-1.log"

    def write(number):
        SystemFile(here).add([replace(SAMPLE, host="h2", time_unix_s=float(number))])
        with (here / "metrics.jsonl").open("a") as metrics:
            metrics.write(json.dumps({"step": number, "loss": 0.5}) + "\n")
        with log.open("a") as file:
            file.write(f"{number}\n")

    with coordinator(there, second, collects=True) as received:
        with Shipper(here, lambda: target, None, positions, steps):
            write(1)
            wait_until(lambda: steps.cursor.step == 1)  # read, but nobody takes it
            target = ""
            for number in (2, 3):  # the second is read after all of the first
                write(number)
                wait_until(lambda: positions == ends_of(here))
            assert received == []
            target = second
            write(4)
            wait_until((there / "logs" / "rank-1.log").exists)
        assert (there / "logs" / "rank-1.log").read_text() == "4\n"
        assert [json.loads(line)["step"] for line in lines_of(there / "metrics.jsonl")] == [4]
        assert [json.loads(line)["time_unix_s"] for line in lines_of(there / "system.jsonl")] == [4]


def lines_of(path):
    return path.read_text().splitlines()
