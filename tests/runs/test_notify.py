"""Word of a run goes to the addresses that environment variables hold, and these go nowhere."""

import http.server
import json
import os
import signal
import socket
import socketserver
import subprocess
import sys
import threading
from contextlib import contextmanager

import pytest

from conftest import TASKS, events_of, sampled, wait_until
from holdfast.job import load

pytestmark = pytest.mark.slow

HOLDFAST = [sys.executable, "-m", "holdfast"]
FAULT = {
    "at": "holdfast.worker.step.tree:TreeStepper.begin_shard",
    "when": "before",
    "rank": 1,
    "step": 6,
}


@pytest.fixture
def received():
    """What has come to a server, one dictionary a message, and the address of that."""
    messages = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            length = int(self.headers["Content-Length"])
            messages.append(json.loads(self.rfile.read(length)))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield messages, f"json://user:secret@127.0.0.1:{server.server_port}/hook"
        server.shutdown()
        thread.join()


class Mailbox(socketserver.StreamRequestHandler):
    """A stand-in for a mail server: as much of SMTP (RFC 5321) as it takes to get a message."""

    def handle(self):
        self.wfile.write(b"220 here\r\n")
        for line in self.rfile:
            self.wfile.write(
                b"354 go on\r\n" if line.upper().startswith(b"DATA") else b"250 ok\r\n"
            )
            if line.upper().startswith(b"DATA"):
                message = b"".join(iter(self.rfile.readline, b".\r\n"))
                self.server.messages.append(message.decode())
                self.wfile.write(b"250 ok\r\n")


@pytest.fixture
def mailed():
    """What has come to a mail server, and the address of that."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Mailbox) as server:
        server.daemon_threads, server.messages = True, []
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        port = server.server_address[1]
        yield server.messages, f"mailto://127.0.0.1:{port}?from=a@example.org&to=b@example.org"
        server.shutdown()
        thread.join()


@pytest.fixture
def start(tmp_path):
    """Start a run in `tmp_path / "run"` that is to notify HOOK, which holds an address."""

    def run(address, *words, task="main", faults=(), environment=None, **keys):
        values = {
            "name": "points",
            "task": f"{TASKS.parent / 'faulty_tasks.py'}:{task}",
            "params": {"faults": list(faults)},
            "batch": 20,
            "shards": 5,
            "workers": 2,
            "notify": ["HOOK"],
            **keys,
        }
        (tmp_path / "job.yaml").write_text(load.dump(load.check(values, where="test")))
        known = {**os.environ, **(environment or {})} | ({"HOOK": address} if address else {})
        return subprocess.Popen(
            [*HOLDFAST, "train", "job.yaml", "--run", "run", *words],
            cwd=tmp_path,
            env=known,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    yield run
    for path in (tmp_path / "run").rglob("*"):
        assert path.is_dir() or b"secret" not in path.read_bytes(), path


def finish(process):
    """Its status, and the lines that it has written to standard error."""
    out, err = process.communicate(timeout=120)
    assert "secret" not in out + err
    return process.returncode, err.splitlines()


def test_a_run_notifies_of_a_recovery_and_of_its_end(start, received, tmp_path):
    messages, address = received
    kill = {**FAULT, "how": "kill", "mark": str(tmp_path / "mark")}
    assert finish(start(address, faults=[kill]))[0] == 0
    recovered, finished = sorted(messages, key=lambda message: "finished" in message["title"])
    assert recovered["title"] == "holdfast: points recovered"
    assert "rank 1 was killed by SIGKILL" in recovered["message"]
    assert len(recovered["message"].splitlines()) == 3
    assert finished["title"] == "holdfast: points finished"
    assert "weights_sha256" in finished["message"]


@pytest.mark.soak
def test_a_run_notifies_of_its_end_by_mail(start, mailed):
    messages, address = mailed
    assert finish(start(address))[0] == 0
    assert ["holdfast: points finished" in message for message in messages] == [True]


@pytest.mark.soak
def test_a_run_notifies_of_its_failure(start, received):
    messages, address = received
    assert finish(start(address, faults=[{**FAULT, "how": "raise"}]))[0] == 1
    assert [message["title"] for message in messages] == ["holdfast: points failed"]
    assert "rank 1 raised ValueError: as planned" in messages[0]["message"]


@pytest.mark.soak
def test_a_run_notifies_that_it_was_stopped(start, received, tmp_path):
    messages, address = received
    process = start(address, task="endless")
    wait_until((tmp_path / "run" / "metrics.jsonl").exists)
    process.send_signal(signal.SIGTERM)
    assert finish(process)[0] == 130
    assert [message["title"] for message in messages] == ["holdfast: points stopped"]


def test_a_run_that_was_refused_its_directory_does_not_notify(start, received, tmp_path):
    messages, address = received
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "job.yaml").touch()
    status, [line] = finish(start(address))
    assert (status, messages) == (2, [])
    assert "run already contains a run" in line


@contextmanager
def closed_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    yield port


@contextmanager
def silence():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.mark.soak
@pytest.mark.parametrize("where", sampled([closed_port, silence], 0))
def test_a_notification_that_fails_is_one_line_and_one_event(start, tmp_path, where):
    with where() as port:
        status, err = finish(start(f"json://user:secret@127.0.0.1:{port}/hook"))
    assert status == 0
    [line] = [line for line in err if "notification" in line]
    assert line.startswith("holdfast: a notification was not delivered; ")
    assert "the address in HOOK is right" in line
    failed = [e for e in events_of(tmp_path / "run") if e["event"] == "notification-failed"]
    assert [event["variable"] for event in failed] == ["HOOK"]


@pytest.mark.parametrize(
    ("address", "words", "message"),
    sampled(
        [
            (None, [], "notify: the environment variable HOOK is not set"),
            (
                "nonsense://user:secret@x",
                [],
                "notify: the value of HOOK is not an address that Apprise",
            ),
            (
                "",
                ["notify=[nonsense://user:secret@x]"],
                "notify: input should be a list of environment",
            ),
            (
                "",
                ["notify=nonsense://user:secret@x"],
                "notify: input should be a list of environment",
            ),
        ],
        1,
    ),
)
def test_what_cannot_be_notified_is_refused_before_the_run(
    start, tmp_path, address, words, message
):
    status, [line] = finish(start(address, *words))
    assert status == 2
    assert message in line
    assert not (tmp_path / "run").exists()


def test_a_library_that_is_not_there_is_named(start, tmp_path):
    (tmp_path / "absent").mkdir()
    (tmp_path / "absent" / "apprise.py").write_text("raise ImportError")
    path = os.pathsep.join([str(tmp_path / "absent"), os.environ.get("PYTHONPATH", "")])
    process = start("json://user:secret@x", environment={"PYTHONPATH": path})
    status, [line] = finish(process)
    assert (status, "pip install 'holdfast[notify]'" in line) == (2, True)
