"""The dashboard answers its own page on this machine, and no page of another site."""

import http.client
import re
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from holdfast.views.dashboard.live import LiveRuns
from holdfast.views.dashboard.loopback_only import is_own
from holdfast.views.dashboard.view import PageLink

pytest.importorskip("streamlit")
HOLDFAST = Path(sys.executable).with_name("holdfast")
WEBSOCKET = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}


@contextmanager
def served(tmp_path):
    """A dashboard's process and port."""
    (tmp_path / "runs").mkdir()
    with (tmp_path / "output").open("w") as output:
        process = subprocess.Popen(
            [HOLDFAST, "dashboard", "runs", "--port", "0", "--no-browser"],
            cwd=tmp_path, stdout=subprocess.PIPE, stderr=output, text=True,
        )  # fmt: skip
        try:
            first, second = process.stdout.readline(), process.stdout.readline()
            port = int(re.search(r":(\d+);", first)[1])
            assert f"ssh -L {port}:127.0.0.1:{port}" in second
            yield process, port
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)


def status_of(port, path, headers):
    """The status of an answer; for a websocket, before it is closed."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", path, headers=headers)
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.slow
def test_only_the_page_of_this_machine_is_answered(tmp_path):
    with served(tmp_path) as (process, port):
        own = [{}, {"Origin": f"http://127.0.0.1:{port}"},
               {"Host": "localhost:9", "Origin": "http://localhost:9"}]  # fmt: skip
        evil = {"Origin": "http://evil.example"}
        others = [evil, {"Host": "evil.example"}, evil | {"Host": "evil.example"}]
        assert [status_of(port, "/", each) for each in own] == [200] * 3
        assert [status_of(port, "/_stcore/stream", WEBSOCKET | each) for each in own] == [101] * 3
        assert [status_of(port, "/", each) for each in others] == [403] * 3
        refused = [status_of(port, "/_stcore/stream", WEBSOCKET | each) for each in others]
        assert refused == [403] * 3
        served_by = psutil.Process(process.pid).children()[0]
        listening = [each.laddr for each in served_by.net_connections() if each.status == "LISTEN"]
        assert listening == [("127.0.0.1", port)]
    assert (tmp_path / "output").read_text() == ""


@pytest.mark.parametrize(
    ("host", "origin", "is_answered"),
    [
        ("127.0.0.1:80", None, True),
        ("LOCALHOST", None, True),
        ("localhost:1", "http://localhost:1", True),
        ("localhost:1", "http://localhost:2", False),
        ("localhost:1", "null", False),
        ("", None, False),
        ("localhost.evil.example", None, False),
        ("evil.example", "http://evil.example", False),
        ("10.0.0.1:80", "http://10.0.0.1:80", False),
        ("[", None, False),
        ("localhost", "http://[", False),
    ],
)
def test_host_and_origin_are_those_of_the_own_page(host, origin, is_answered):
    headers = {b"host": host.encode()} | ({b"origin": origin.encode()} if origin else {})
    assert is_own(headers) is is_answered


def test_a_link_says_what_is_shown_and_nothing_unknown():
    chosen = PageLink(run="b", axis="Step", span="10 min")
    assert PageLink.parse(chosen.query(), ["a", "b"]) == chosen
    assert PageLink.parse({"run": "../b", "axis": "<b>", "span": ""}, ["a", "b"]) == PageLink(
        run="a"
    )


def test_a_link_finds_an_old_run_in_this_directory_only(tmp_path):
    for name in ("one", "runs/two"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "events.jsonl").touch()
    runs = LiveRuns(tmp_path / "runs")
    monkey = ["../one", str(tmp_path / "one"), "..", ".", "", "two", "three", "a" * 300, "a\0b"]
    assert {name for each in monkey for name in runs.names(asked=each)} == {"two"}
