"""Every kind of store keeps what the protocol promises, and says what is wrong with it."""

import secrets
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from holdfast.checkpoint.remote.open import open_store
from holdfast.errors import JobError
from object_stores import ENVIRONMENT, Late, make_bucket, s3_server

KINDS = ["s3", "directory", "file", "late"]


@pytest.fixture(scope="module")
def s3():
    with s3_server() as endpoint:
        make_bucket("bucket")
        yield endpoint


@pytest.fixture(params=KINDS)
def store(request, tmp_path):
    """A new store of each kind."""
    if request.param == "s3":
        request.getfixturevalue("s3")
        return open_store(f"s3://bucket/{secrets.token_hex(4)}", {"AWS_ALLOW_HTTP": "true"})
    url = {
        "directory": str(tmp_path / "objects"),
        "file": f"file://{tmp_path}/with%20space",
        "late": str(tmp_path / "objects"),
    }[request.param]
    opened = open_store(url, {})
    return Late(opened) if request.param == "late" else opened


def test_an_object_is_read_as_it_was_written(store):
    content = bytes(range(256)) * 1000
    assert store.put("a/b/c", content)
    assert store.put("empty", memoryview(bytearray()))
    assert store.get("a/b/c") == content
    assert store.get("empty") == b""
    assert (store.size("a/b/c"), store.size("empty")) == (256_000, 0)
    assert store.put("a/b/c", memoryview(bytearray(b"other")))
    assert store.get("a/b/c") == b"other"


def test_a_new_object_replaces_none(store):
    assert store.put("a/b", b"first", new=True)
    assert not store.put("a/b", b"second", new=True)
    assert store.get("a/b") == b"first"


def test_what_is_not_there_is_missing(store):
    store.put("a/b", b"1")
    assert store.size("a/c") is None
    assert store.size("a/b/c") is None
    with pytest.raises(FileNotFoundError):
        store.get("a/c")
    assert store.children("none") == []
    store.delete("a/c")
    assert store.get("a/b") == b"1"


def test_a_listing_shows_folders_and_objects_in_the_end(store):
    for name in ("top", "a/b/c", "a/b/d", "a/e"):
        store.put(name, b"1")
    for folder, shown in (("", ["a", "top"]), ("a", ["b", "e"]), ("a/b", ["c", "d"])):
        for _ in range(3):
            found = sorted(store.children(folder))
        assert found == shown


def test_a_folder_is_deleted_with_all_that_is_in_it(store):
    for name in ("a/b/c", "a/b/d/e", "a/f", "ab"):
        store.put(name, b"1")
    store.delete("a/b")
    assert [store.size(name) for name in ("a/b/c", "a/b/d/e", "a/f", "ab")] == [None, None, 1, 1]
    store.delete("a/f")
    assert [store.size(name) for name in ("a/f", "ab")] == [None, 1]


@contextmanager
def answering(statuses):
    """A server of S3 that answers with these statuses, then with an object; yields what came."""
    asked, left = [], list(statuses)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            status, body = (left.pop(0), b"") if left else (200, b"content")
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("ETag", '"1"')
            self.send_header("Last-Modified", "Fri, 27 Nov 2026 12:00:00 GMT")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    with ThreadPoolExecutor(1) as pool, pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        patch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
        pool.submit(server.serve_forever, 0.01)
        try:
            yield asked
        finally:
            server.shutdown()
            server.server_close()


def test_a_request_that_the_server_fails_to_answer_is_repeated():
    with answering([500, 503]) as asked:
        assert open_store("s3://bucket/x", ENVIRONMENT).get("a") == b"content"
    assert asked == ["/bucket/x/a"] * 3


@pytest.mark.parametrize(("status", "error"), [(403, PermissionError), (404, FileNotFoundError)])
def test_a_request_that_is_refused_is_not_repeated(status, error):
    with answering([status]) as asked, pytest.raises(error, match=r"^s3://bucket/x: "):
        open_store("s3://bucket/x", ENVIRONMENT).get("a")
    assert len(asked) == 1


def test_a_server_that_fails_again_and_again_is_named():
    with answering([503] * 99), pytest.raises(OSError, match=r"^s3://bucket/x: .*503") as caught:
        open_store("s3://bucket/x", ENVIRONMENT, 0.3).get("a")
    assert not isinstance(caught.value, PermissionError)


def test_a_bucket_that_is_not_there_is_named(s3):
    store = open_store("s3://nobucket/x", {"AWS_ALLOW_HTTP": "true"})
    with pytest.raises(OSError, match=r"^s3://nobucket/x: NoSuchBucket: The specified bucket"):
        store.put("a", b"1")
    with pytest.raises(OSError, match=r"^s3://nobucket/x: NoSuchBucket"):
        store.children("")


def test_an_endpoint_that_does_not_answer_is_named(monkeypatch, free_port):
    for name, value in {"ACCESS_KEY_ID": "id", "SECRET_ACCESS_KEY": "key"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    endpoint = f"http://127.0.0.1:{free_port}"
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    environment = {"AWS_ALLOW_HTTP": "true", "AWS_ENDPOINT_URL": endpoint}
    store = open_store("s3://bucket/x", environment, 0.3)
    with pytest.raises(OSError, match=rf"^s3://bucket/x: {endpoint} cannot be reached$"):
        store.get("a")


def test_an_endpoint_without_encryption_must_be_allowed():
    with pytest.raises(JobError, match="not encrypted; use https, or set AWS_ALLOW_HTTP=true"):
        open_store("s3://bucket", {"AWS_ENDPOINT_URL": "http://127.0.0.1:1"})


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("nothing://there", r"nothing:// is no store for backups; name a directory, or s3://"),
        ("sftp://host/path", r"sftp:// is no store .* can be mounted as a directory"),
        ("memory://x", r"memory:// is no store for backups"),
        ("file://host/path", "names a host"),
    ],
)
def test_a_store_that_cannot_be_used_is_refused_with_the_reason(url, reason):
    with pytest.raises(JobError, match=reason):
        open_store(url, {})


def test_a_library_that_is_missing_is_named_with_its_extra(monkeypatch):
    for name in [each for each in sys.modules if each.partition(".")[0] == "obstore"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(JobError, match=r"needs the library obstore: pip install .*objects"):
        open_store("s3://bucket", {})


def test_a_directory_that_must_not_be_written_says_so(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        open_store(str(tmp_path / "file"), {}).put("a", b"1")


def test_credentials_that_are_refused_are_named_without_being_repeated(s3, monkeypatch):
    monkeypatch.setattr("moto.settings.INITIAL_NO_AUTH_ACTION_COUNT", 0.0)
    store = open_store("s3://bucket/x", {"AWS_ALLOW_HTTP": "true"})
    for ask in (lambda: store.put("a", b"1"), lambda: store.get("a"), lambda: store.children("")):
        with pytest.raises(PermissionError, match=r"^s3://bucket/x: InvalidAccessKeyId") as caught:
            ask()
        assert "secret" not in str(caught.value)
    with pytest.raises(PermissionError):
        store.size("a")
