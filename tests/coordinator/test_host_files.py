"""What other hosts log is appended to the run's logs once, and nowhere else."""

import asyncio
import base64
import json

import pytest

from holdfast.coordinator import host_files
from holdfast.coordinator.host_files import HostFiles
from holdfast.errors import ProtocolError
from holdfast.rundir.json_lines import EventLog
from holdfast.wire.rpc import MAX_SHIPPED_BYTES, ShipMessage

HOST = "h2-0a1b2c3d"


@pytest.fixture
def files(tmp_path):
    (tmp_path / "logs").mkdir()
    with EventLog(tmp_path / "events.jsonl") as log:
        yield HostFiles(tmp_path, log, collects=False)


def message(file, offset, content, **more):
    return ShipMessage(file=file, offset=offset, content=base64.b64encode(content).decode(), **more)


def event(name):
    return json.dumps({"time_unix_s": 1.5, "event": name}).encode() + b"\n"


def test_logs_of_workers_go_to_those_of_the_run_and_an_agents_to_its_own(files, tmp_path):
    files.receive(HOST, message("logs/rank-3.log", 0, b"one\n"))
    files.receive(HOST, message("logs/agent.log", 0, b"two\n"))
    assert (tmp_path / "logs/rank-3.log").read_bytes() == b"one\n"
    assert (tmp_path / f"logs/agent-{HOST}.log").read_bytes() == b"two\n"


def test_what_is_sent_again_is_appended_once(files, tmp_path):
    for content in (b"one\n", b"one\n", b"one\ntwo\n"):
        files.receive(HOST, message("logs/rank-3.log", 700, content))
    files.receive(HOST, message("logs/rank-3.log", 708, b"three\n"))
    assert (tmp_path / "logs/rank-3.log").read_bytes() == b"one\ntwo\nthree\n"


def test_an_event_that_a_coordinator_before_this_one_has_appended_is_not_appended_again(
    files, tmp_path
):
    sent = message("events.jsonl", 0, event("first"))
    files.receive(HOST, sent)
    with EventLog(tmp_path / "events.jsonl") as log:
        log.event("another")
        successor = HostFiles(tmp_path, log, collects=False)
        successor.receive(HOST, sent)
        successor.receive(HOST, message("events.jsonl", len(event("first")), event("second")))
    lines = (tmp_path / "events.jsonl").read_text().splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["first", "another", "second"]


def test_lines_that_are_no_events_are_dropped(files, tmp_path):
    bad = [b"no json\n", b"[]\n", b'{"event": 3, "time_unix_s": 1}\n', b'{"event": "x"}\n']
    files.receive(HOST, message("events.jsonl", 0, b"".join([*bad, event("good")])))
    [good] = (tmp_path / "events.jsonl").read_text().splitlines()
    assert json.loads(good) == {"time_unix_s": 1.5, "event": "good", "shipped": True}


@pytest.mark.parametrize(
    "file", ["job.yaml", "logs/../job.yaml", "logs/rank-1.stacks", "/etc/passwd", "metrics.jsonl"]
)
def test_other_files_are_refused(files, tmp_path, file):
    with pytest.raises(ProtocolError, match="no log of a run"):
        files.receive(HOST, message(file, 0, b"x"))


def test_what_is_no_part_of_a_log_is_refused(files):
    with pytest.raises(ProtocolError, match="not base64"):
        files.receive(HOST, ShipMessage(file="logs/agent.log", offset=0, content="%"))
    with pytest.raises(ProtocolError, match="too long"):
        files.receive(HOST, message("logs/agent.log", 0, bytes(MAX_SHIPPED_BYTES + 1)))


def test_a_host_that_logs_too_much_is_cut_off_and_said_to_be(files, tmp_path, monkeypatch):
    monkeypatch.setattr(host_files, "MAX_HOST_BYTES", 10)
    for offset in range(0, 30, 6):
        files.receive(HOST, message("logs/rank-0.log", offset, b"hello\n"))
    assert (tmp_path / "logs/rank-0.log").read_bytes() == b"hello\n"
    (line,) = (tmp_path / "events.jsonl").read_text().splitlines()
    assert json.loads(line)["event"] == "host-log-full"


def test_the_end_waits_for_hosts_that_have_more_to_send_and_are_not_lost(files):
    async def end():
        for host in ("a", "b"):
            files.receive(host, message("events.jsonl", 0, b""))
        files.on_disconnected("b")
        waiting = asyncio.create_task(files.await_last(60))
        await asyncio.sleep(0)
        assert not waiting.done()
        files.receive("a", message("events.jsonl", 0, b"", is_last=True))
        await waiting
        await files.await_last(60)

    asyncio.run(end())
