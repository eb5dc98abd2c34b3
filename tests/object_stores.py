"""Stores for tests: a server of S3 in this process, and a store that is slow to show things."""

import errno
import logging
import os
import threading
import urllib.request
from contextlib import contextmanager

import pytest

ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "id",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_REGION": "us-east-1",
    "AWS_ALLOW_HTTP": "true",
}


@contextmanager
def s3_server():
    """A server of S3; its endpoint and credentials are in the environment while the block runs."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    endpoint = "http://{}:{}".format(*server.get_host_and_port())
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**ENVIRONMENT, "AWS_ENDPOINT_URL": endpoint}.items():
            patch.setenv(name, value)
        try:
            yield endpoint
        finally:
            server.stop()


def make_bucket(name):
    """Make a bucket of the server in the environment."""
    request = urllib.request.Request(f"{os.environ['AWS_ENDPOINT_URL']}/{name}", method="PUT")
    urllib.request.urlopen(request).close()


class Troubled:
    """A store like a network file system under load: the first use of every name fails, and a
    listing shows a new object only after it was listed so many times.

    Args:
        objects: The store behind it.
        late: How many listings do not show a new object.
    """

    def __init__(self, objects, late=2):
        self.url, self._objects, self._late = objects.url, objects, late
        self._used, self._listed, self._lock = set(), {}, threading.Lock()
        self.failures = 0

    def put(self, name, data, *, new=False):
        self._fail_first("put", name)
        return self._objects.put(name, data, new=new)

    def get(self, name):
        self._fail_first("get", name)
        return self._objects.get(name)

    def size(self, name):
        self._fail_first("size", name)
        return self._objects.size(name)

    def children(self, folder):
        shown = []
        for name in self._objects.children(folder):
            times = self._listed[folder, name] = self._listed.get((folder, name), 0) + 1
            if times > self._late:
                shown.append(name)
        return shown

    def delete(self, name):
        self._fail_first("delete", name)
        self._objects.delete(name)

    def _fail_first(self, what, name):
        with self._lock:
            if (what, name) not in self._used:
                self._used.add((what, name))
                self.failures += 1
                raise OSError(errno.ESTALE, "Stale file handle", name)
