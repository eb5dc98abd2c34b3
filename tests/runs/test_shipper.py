"""The logs of a host arrive whole at a coordinator that may be away for a while."""

import asyncio
import json
import os
import threading
from contextlib import contextmanager
from dataclasses import replace

import grpc
import pytest

from conftest import wait_until
from holdfast.coordinator.host_files import HostFiles
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
def coordinator(there, address):
    """A coordinator that takes logs while the block runs."""
    up, down = threading.Event(), asyncio.Event()

    async def serve():
        nonlocal loop
        loop = asyncio.get_running_loop()
        with EventLog(there / "events.jsonl") as log:
            files = HostFiles(there, log, collects=False)

            async def ship(message, _context):
                return files.receive("h2", message)

            server = grpc.aio.server(options=OPTIONS)
            server.add_generic_rpc_handlers((handlers(ship, ship, ship, ship),))
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
        yield
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

    with Shipper(here, address, None, positions):
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
        with Shipper(here, address, None, ends_of(here)):
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
    with Shipper(here, address, None, ends_of(here)):
        SystemFile(here).add([sample(2.0), sample(3.0)])
        with coordinator(there, address):
            wait_until(lambda: arrived(3.0))
            (here / "system.jsonl").unlink()
            SystemFile(here).add([sample(4.0)])
            wait_until(lambda: arrived(4.0))
    assert len((there / "system.jsonl").read_text().splitlines()) == 3
