"""Who is let in to the dashboard: over real connections, with and without the token."""

import http.client
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from holdfast.errors import JobError
from holdfast.job import load
from holdfast.record import registry
from holdfast.rundir.run_directory import RunDirectory
from holdfast.views.dashboard.access import keys
from holdfast.views.dashboard.access.address import Address
from holdfast.views.dashboard.access.sessions import MAX_CLIENTS, MAX_WRONG, WINDOW_S, Access, Shown
from holdfast.views.dashboard.link import Link
from holdfast.views.dashboard.live import LiveRuns
from holdfast.views.dashboard.stopping import Stop

pytest.importorskip("streamlit")
HOLDFAST = Path(sys.executable).with_name("holdfast")
WEBSOCKET = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}
CLOSED = [
    ("GET", "/", {}),
    ("GET", "/?run=secret", {}),
    ("GET", "/_stcore/health", {}),
    ("GET", "/_stcore/host-config", {}),
    ("GET", "/_stcore/stream", WEBSOCKET),
    ("PUT", "/_stcore/upload_file/session/file", {}),
    ("GET", "/static/index.html", {}),
    ("GET", "/media/file", {}),
    ("GET", "/component/part/index.html", {}),
    ("GET", "/no/such/page", {}),
    ("POST", "/", {}),
]


class Client:
    """Talks to a dashboard that all addresses of this host serve, over TLS."""

    def __init__(self, port):
        self.port, self.cookie = port, {}
        self.context = ssl.create_default_context(cafile=keys.certificate_file())

    def ask(self, method, path, headers=None, body=None):
        """Status, headers and body of an answer; for a websocket, before it is closed."""
        connection = http.client.HTTPSConnection(
            "localhost", self.port, context=self.context, timeout=60
        )
        try:
            connection.request(method, path, body, {**self.cookie, **(headers or {})})
            answer = connection.getresponse()
            is_open = answer.status == http.client.SWITCHING_PROTOCOLS
            return answer.status, answer.headers, b"" if is_open else answer.read()
        finally:
            connection.close()


@contextmanager
def served(tmp_path, *words):
    """A dashboard, its address and its output."""
    (tmp_path / "runs").mkdir()
    with (tmp_path / "output").open("w") as output:
        process = subprocess.Popen(
            [HOLDFAST, "dashboard", "runs", "--port", "0", "--no-browser", *words],
            cwd=tmp_path, stdout=subprocess.PIPE, stderr=output, text=True,
        )  # fmt: skip
        try:
            lines = process.stdout.readline() + process.stdout.readline()
            yield process, lines
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)


@pytest.mark.slow
def test_beyond_this_machine_every_path_needs_the_token(tmp_path):
    with served(tmp_path, "--host", "0.0.0.0") as (process, said):
        client = Client(int(re.search(r":(\d+);", said)[1]))
        assert f"token in {keys.token_file()}" in said
        assert keys.certificate(Address.parse("0.0.0.0")) in said

        token = keys.token()
        for method, path, headers in CLOSED:
            for cookie in ("", "holdfast_session=", f"holdfast_session={token}"):
                status, _, body = client.ask(method, path, {**headers, "Cookie": cookie})
                assert status == 401, path
                assert body == b"" or (path[:2] in ("/", "/?") and b"<form" in body)
                assert token.encode() not in body

        assert client.ask("GET", "/?token=wrong")[0] == 401
        status, headers, body = client.ask("GET", f"/?token={token}&run=a")
        assert status == 200
        assert b'content="0;url=/?run=a"' in body
        assert token not in headers["Set-Cookie"]
        assert re.search("; HttpOnly; .*SameSite=Strict; Secure", headers["Set-Cookie"])

        form = f"token={token}"
        assert client.ask("POST", "/login", body="token=wrong")[0] == 401
        assert client.ask("POST", "/login", {"Origin": "https://evil.example"}, form)[0] == 403
        status, headers, _ = client.ask("POST", "/login?run=a", body=form)
        assert (status, headers["Location"]) == (303, "/?run=a")

        client.cookie = {"Cookie": headers["Set-Cookie"].partition(";")[0]}
        status, headers, body = client.ask("GET", "/")
        assert (status, headers["X-Frame-Options"]) == (200, "DENY")
        assert b"<script" in body
        assert client.ask("GET", "/_stcore/health")[0] == 200
        assert client.ask("GET", "/_stcore/stream", WEBSOCKET)[0] == 101
        evil = {"Origin": "https://evil.example"}
        assert client.ask("GET", "/_stcore/stream", WEBSOCKET | evil)[0] == 403
        assert client.ask("GET", "/", {"Host": "evil.example"})[0] == 400

        for _ in range(MAX_WRONG):
            assert client.ask("POST", "/login", body="token=wrong")[0] == 401
        assert client.ask("POST", "/login", body=form)[0] == 429

        known = psutil.Process(process.pid)
        pids = [known.pid, *(each.pid for each in known.children(recursive=True))]
        assert len(pids) == 2
        files = [Path(f"/proc/{pid}/{name}") for pid in pids for name in ("cmdline", "environ")]
        shown = [path.read_bytes() for path in files]
        assert not any(token.encode() in each for each in shown)
    assert (tmp_path / "output").read_text() == ""


def test_wrong_tokens_are_limited_by_address_and_time():
    access = Access("right")
    assert [access.check("wrong", "a", at) for at in range(MAX_WRONG)] == [Shown.WRONG] * MAX_WRONG
    assert access.check("right", "a", MAX_WRONG) is Shown.TOO_MANY
    assert access.check("right", "b", MAX_WRONG) is Shown.RIGHT
    assert access.check("right", "a", WINDOW_S) is Shown.RIGHT
    assert access.check("é", "c", 0) is Shown.WRONG
    for client in range(2 * MAX_CLIENTS):
        access.check("wrong", str(client), 0)
    assert len(access._wrong) == MAX_CLIENTS


def test_a_session_is_that_of_its_token():
    session = Access("one").new_session()
    assert Access("one").is_session(session)
    assert not Access("two").is_session(session)
    assert not any(Access("one").is_session(each) for each in (None, "", "one", session[:-1], "é"))


@pytest.mark.parametrize(
    ("host", "right", "wrong"),
    [
        (
            "127.0.0.1",
            ["127.0.0.1:80", "localhost:1", "[::1]:1", "LOCALHOST", "127.0.0.2"],
            ["", "evil.example", "10.0.0.1:80", "localhost.evil.example", "[", "[::1", "a:b"],
        ),
        (
            "0.0.0.0",
            ["10.0.0.1:80", "localhost", socket.gethostname(), f"{socket.gethostname()}.lan:1"],
            ["", "evil.example", "127.0.0.1.evil.example"],
        ),
    ],
)
def test_only_hosts_that_are_this_one_are_served(host, right, wrong):
    address = Address.parse(host)
    assert [each for each in right if not address.serves(each)] == []
    assert [each for each in wrong if address.serves(each)] == []


def test_keys_are_for_their_owner_only_and_stay(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    token, address = keys.token(), Address.parse("::")
    assert (keys.token(), len(token)) == (token, 43)
    assert keys.certificate(address) == keys.certificate(address)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    assert {path.name for path in files} == {"token", "certificate.pem"}
    keys.certificate_file().write_text("no certificate")
    with pytest.raises(JobError, match=r"certificate\.pem"):
        keys.certificate(address)
    keys.token_file().chmod(0o640)
    with pytest.raises(JobError, match="can be read by others"):
        keys.token()
    keys.token_file().unlink()
    assert keys.token() != token


def test_a_link_says_what_is_shown_and_nothing_unknown():
    chosen = Link(run="b", axis="Step", span="10 min")
    assert Link.parse(chosen.query(), ["a", "b"]) == chosen
    assert Link.parse({"run": "../b", "axis": "<b>", "span": ""}, ["a", "b"]) == Link(run="a")


def test_a_link_finds_an_old_run_in_this_directory_only(tmp_path):
    for name in ("one", "runs/two"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "events.jsonl").touch()
    runs = LiveRuns(tmp_path / "runs")
    monkey = ["../one", str(tmp_path / "one"), "..", ".", "", "two", "three", "a" * 300, "a\0b"]
    assert {name for each in monkey for name in runs.names(asked=each)} == {"two"}


def test_a_run_is_asked_to_stop_once_however_many_ask(tmp_path):
    asked, path = [], tmp_path / "runs" / "one"
    before = signal.signal(signal.SIGTERM, lambda *_: asked.append("to stop"))
    try:
        with RunDirectory(path, load.load("digits", []), resume=False):
            log(path, "run-started", pid=os.getpid())
            runs = LiveRuns(path.parent)
            assert runs.stop_state("one") is Stop.OFFERED
            runs.request_stop("one")
            runs.request_stop("one")
            assert asked == ["to stop"]
            assert runs.stop_state("one") is Stop.REQUESTED

            log(path, "stop-requested")
            other = LiveRuns(path.parent)
            other.request_stop("one")
            assert asked == ["to stop"]
            assert other.stop_state("one") is Stop.REQUESTED

            log(path, "run-started", pid=os.getpid())
            (path / ".lock").write_text(f"{os.getpid()} on another-host")
            other = LiveRuns(path.parent)
            assert other.stop_state("one") is Stop.ELSEWHERE
            with pytest.raises(JobError, match="is not running on this host: it is starting"):
                other.request_stop("one")
        assert LiveRuns(path.parent).stop_state("one") is Stop.OVER
    finally:
        signal.signal(signal.SIGTERM, before)


def log(path, event, **fields):
    with (path / "events.jsonl").open("a") as file:
        file.write(json.dumps({"time_unix_s": time.time(), "event": event, **fields}) + "\n")


def test_a_run_that_does_not_run_here_is_not_stopped(tmp_path):
    (tmp_path / "job.yaml").touch()
    with pytest.raises(JobError, match=r"is not running on this host: it is starting; if another"):
        registry.find(str(tmp_path)).stop()
