"""Every kind of store keeps what the protocol promises, and says what is wrong with it."""

import errno
import secrets
import sys

import pytest

from holdfast.checkpoint.remote.open import open_store
from holdfast.checkpoint.remote.retrying import Patience, Retrying
from holdfast.errors import JobError
from object_stores import Troubled, make_bucket, s3_server

AT_ONCE = Patience(pause_s=0.001, deadline_s=0.0, missing_s=0.0)
PATIENT = Patience(pause_s=0.001, deadline_s=10.0, missing_s=10.0)
KINDS = ["s3", "directory", "file", "memory", "local", "troubled"]


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
        "memory": f"memory://{tmp_path}",
        "local": f"local://{tmp_path}/local",
        "troubled": str(tmp_path / "objects"),
    }[request.param]
    opened = open_store(url, {}, PATIENT)
    return Retrying(Troubled(opened), PATIENT) if request.param == "troubled" else opened


def test_an_object_is_read_as_it_was_written(store):
    content = bytes(range(256)) * 1000
    assert store.put("a/b/c", content)
    assert store.put("empty", memoryview(bytearray()))
    assert store.get("a/b/c") == store.expect("a/b/c") == content
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


def test_an_object_that_is_shown_late_is_awaited(tmp_path):
    inner = open_store(str(tmp_path), {})

    class Late:
        url, reads = "late", 0

        def get(self, name):
            self.reads += 1
            if self.reads < 4:
                raise FileNotFoundError(name)
            return inner.get(name)

    inner.put("a", b"1")
    late = Late()
    with pytest.raises(FileNotFoundError):
        Retrying(late, PATIENT).get("a")
    with pytest.raises(FileNotFoundError):
        Retrying(late, AT_ONCE).expect("a")
    assert Retrying(late, PATIENT).expect("a") == b"1"
    assert late.reads == 4


@pytest.mark.parametrize(
    ("number", "attempts"),
    [(errno.ESTALE, 5), (errno.EIO, 5), (errno.ENOSPC, 1), (errno.EACCES, 1)],
)
def test_only_errors_that_may_pass_are_repeated_and_not_for_ever(number, attempts):
    class Failing:
        url, asked = "failing", 0

        def size(self, name):
            self.asked += 1
            raise OSError(number, "no")

    failing = Failing()
    patience = Patience(pause_s=0.001, max_pause_s=0.001, deadline_s=0.02)
    with pytest.raises(OSError, match="no"):
        Retrying(failing, patience).size("a")
    assert failing.asked >= attempts
    assert attempts > 1 or failing.asked == 1


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
    store = open_store("s3://bucket/x", environment, AT_ONCE)
    with pytest.raises(OSError, match=rf"^s3://bucket/x: {endpoint} cannot be reached$"):
        store.get("a")


def test_an_endpoint_without_encryption_must_be_allowed():
    with pytest.raises(JobError, match="not encrypted; use https, or set AWS_ALLOW_HTTP=true"):
        open_store("s3://bucket", {"AWS_ENDPOINT_URL": "http://127.0.0.1:1"})


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("nothing://there", "nothing://there cannot be used: Protocol not known"),
        ("file://host/path", "names a host"),
        ("hdfs://host/x", "hdfs://host/x "),
    ],
)
def test_a_store_that_cannot_be_used_is_refused_with_the_reason(url, reason):
    with pytest.raises(JobError, match=reason):
        open_store(url, {})


@pytest.mark.parametrize(("url", "library"), [("s3://bucket", "obstore"), ("memory://x", "fsspec")])
def test_a_library_that_is_missing_is_named_with_its_extra(url, library, monkeypatch):
    for name in [each for each in sys.modules if each.partition(".")[0] == library]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(JobError, match=rf"needs the library {library}: pip install .*objects"):
        open_store(url, {})


def test_a_directory_that_must_not_be_written_says_so(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        open_store(str(tmp_path / "file"), {}, AT_ONCE).put("a", b"1")


def test_credentials_that_are_refused_are_named_without_being_repeated(s3, monkeypatch):
    monkeypatch.setattr("moto.settings.INITIAL_NO_AUTH_ACTION_COUNT", 0.0)
    store = open_store("s3://bucket/x", {"AWS_ALLOW_HTTP": "true"})
    for ask in (lambda: store.put("a", b"1"), lambda: store.get("a"), lambda: store.children("")):
        with pytest.raises(PermissionError, match=r"^s3://bucket/x: InvalidAccessKeyId") as caught:
            ask()
        assert "secret" not in str(caught.value)
    with pytest.raises(PermissionError):
        store.size("a")
