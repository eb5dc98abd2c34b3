"""Downloads from a real server: complete and verified, once for all processes, or not at all."""

import hashlib
import http.server
import os
import resource
import subprocess
import sys
import threading

import pytest

from conftest import sampled
from holdfast.data.download import download
from holdfast.data.published import PUBLISHED, Published, PublishedFile
from holdfast.errors import JobError

CONTENT = {"small": b"a few bytes", "large": os.urandom(300_000)}


class Server(http.server.ThreadingHTTPServer):
    """Serves CONTENT below any folder, and counts what it is asked for.

    Attributes:
        asked: The addresses, in their order.
        answer: What becomes of a file's bytes on their way, and the length that is announced.
        gate: Waited for before an answer.
        knocked: Set once a request has arrived.
    """

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests, self.answer = [], lambda data: (data, len(data))
        self.gate, self.knocked = threading.Event(), threading.Event()
        self.gate.set()

    @property
    def address(self):
        return f"http://127.0.0.1:{self.server_port}"


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.requests.append(self.path)
        self.server.knocked.set()
        self.server.gate.wait(60)
        name = self.path.rpartition("/")[2]
        if name not in CONTENT:
            self.send_error(404)
            return
        data, length = self.server.answer(CONTENT[name])
        self.send_response(200)
        self.send_header("Content-Length", str(length))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield running
        running.gate.set()
        running.shutdown()
        thread.join()


def published(site, *names):
    files = [
        PublishedFile(n, len(CONTENT[n]), hashlib.sha256(CONTENT[n]).hexdigest()) for n in names
    ]
    return Published(site, tuple(files))


def fetch(server, into, *names):
    download("mine", published(server.address, *names), into, lambda *_: None)


def names_in(path):
    return sorted(entry.name for entry in path.iterdir())


def test_files_are_downloaded_whole_and_once(server, tmp_path):
    came = []
    chosen = published(server.address, "small", "large")
    download("mine", chosen, tmp_path / "a" / "b", lambda *seen: came.append(seen))
    assert {name: (tmp_path / "a" / "b" / name).read_bytes() for name in CONTENT} == CONTENT
    assert came[-1] == (chosen.files[1], 300_000)
    fetch(server, tmp_path / "a" / "b", "small", "large")
    assert server.requests == ["/small", "/large"]


def test_a_mirror_replaces_the_published_address(server, tmp_path, monkeypatch):
    monkeypatch.setenv("HOLDFAST_MIRROR", server.address + "/")
    download("mine", published("http://nowhere.invalid", "small"), tmp_path, lambda *_: None)
    assert server.requests == ["/mine/small"]
    monkeypatch.setenv("HOLDFAST_MIRROR", "file:///etc")
    with pytest.raises(
        JobError, match="HOLDFAST_MIRROR=file:///etc is not an http or https address"
    ):
        download("mine", published("http://nowhere.invalid", "large"), tmp_path, lambda *_: None)


FAULTS = {
    "another file": (lambda data: (data[::-1], len(data)), "has SHA-256 .* and was deleted"),
    "cut connection": (lambda data: (data[:1000], len(data)), "1000"),
    "short file": (lambda data: (data[:1000], 1000), "returned 1000 bytes, not 300000"),
    "long file": (lambda data: (data + b"x", len(data) + 1), "returned 300001 bytes, not 300000"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_file_that_differs_from_the_published_one_is_deleted(server, tmp_path, fault):
    server.answer, message = FAULTS[fault]
    with pytest.raises(JobError, match=f"{server.address}/large.* {message}") as caught:
        fetch(server, tmp_path, "large")
    assert "\n" not in str(caught.value)
    assert names_in(tmp_path) == [".lock"]


def test_a_missing_file_and_a_missing_server_are_reported_in_one_line(server, tmp_path):
    elsewhere = Published(server.address, (PublishedFile("other", 1, "0"),))
    with pytest.raises(JobError, match="/other: the server returned 404 Not Found; check the"):
        download("mine", elsewhere, tmp_path, lambda *_: None)
    closed = published("http://127.0.0.1:1", "small")
    with pytest.raises(JobError, match="refused; check the network, set HOLDFAST_MIRROR"):
        download("mine", closed, tmp_path, lambda *_: None)
    assert names_in(tmp_path) == [".lock"]


def test_a_download_that_takes_too_long_fails(server, tmp_path, monkeypatch):
    monkeypatch.setattr("holdfast.data.download.TIMEOUT_S", 0.0)
    with pytest.raises(JobError, match="only 11 bytes arrived within 0 s"):
        fetch(server, tmp_path, "small")
    assert names_in(tmp_path) == [".lock"]


PROCESS = """
import hashlib, sys
from pathlib import Path
from holdfast.data.download import download
from holdfast.data.published import Published, PublishedFile
from holdfast.errors import JobError

site, into, size, digest = sys.argv[1:]
try:
    chosen = Published(site, (PublishedFile("large", int(size), digest),))
    download("mine", chosen, Path(into), lambda *_: None)
except JobError as error:
    sys.exit(str(error))
"""


def start(server, into):
    data = CONTENT["large"]
    arguments = [server.address, into, len(data), hashlib.sha256(data).hexdigest()]
    return subprocess.Popen(
        [sys.executable, "-c", PROCESS, *map(str, arguments)],
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
def test_of_two_processes_one_downloads_and_the_other_waits(server, tmp_path):
    server.gate.clear()
    first = start(server, tmp_path)
    assert server.knocked.wait(60)
    second = start(server, tmp_path)
    server.gate.set()
    assert [process.communicate(timeout=60)[1] for process in (first, second)] == ["", ""]
    assert (first.returncode, second.returncode) == (0, 0)
    assert server.requests == ["/large"]
    assert (tmp_path / "large").read_bytes() == CONTENT["large"]


@pytest.mark.slow
def test_a_killed_download_starts_again(server, tmp_path):
    server.gate.clear()
    first = start(server, tmp_path)
    assert server.knocked.wait(60)
    first.kill()
    first.communicate()
    server.gate.set()
    assert start(server, tmp_path).communicate(timeout=60)[1] == ""
    assert names_in(tmp_path) == [".lock", "large"]


@pytest.mark.slow
def test_a_full_disk_is_reported_in_one_line(server, tmp_path):
    server.gate.clear()
    limited = start(server, tmp_path)
    assert server.knocked.wait(60)
    resource.prlimit(limited.pid, resource.RLIMIT_FSIZE, (1000, 1000))
    server.gate.set()
    error = limited.communicate(timeout=60)[1]
    assert (
        f"{tmp_path}: File too large; fix that, or set HOLDFAST_DATA to another directory" in error
    )
    assert len(error.splitlines()) == 1
    assert names_in(tmp_path) == [".lock"]


def command(server, into, *arguments):
    return subprocess.run(
        [sys.executable, "-m", "holdfast", "train", *arguments],
        env={**os.environ, "HOLDFAST_MIRROR": server.address, "HOLDFAST_DATA": str(into)},
        capture_output=True,
        text=True,
        cwd=into,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    sampled(
        [
            (["cifar100"], "/cifar100/cifar-100-python.tar.gz: the server returned 404"),
            (["digits"], "--download supports mnist, cifar10, cifar100, not data.name=digits"),
            (["mnist", "data.path=x"], "--download and data.path exclude each other"),
        ],
        0,
    ),
)
def test_the_command_fails_in_one_line_and_leaves_no_run(server, tmp_path, arguments, message):
    done = command(server, tmp_path, *arguments, "--download")
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "runs").exists()


def test_every_published_file_has_a_sha256_and_an_address():
    for data_set in PUBLISHED.values():
        assert all(len(bytes.fromhex(file.sha256)) == 32 for file in data_set.files)
        assert all(address.startswith("https://") for address in data_set.addresses)
