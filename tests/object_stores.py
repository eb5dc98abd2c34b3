"""Stores for tests: a server of S3 in this process, and a store that is slow to show things."""

import logging
import os
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


class Late:
    """A store that shows a new object only after it was listed so many times.

    Args:
        objects: The store behind it.
        late: How many listings do not show a new object.
    """

    def __init__(self, objects, late=2):
        self.url, self._objects, self._late, self._listed = objects.url, objects, late, {}

    def children(self, folder):
        shown = []
        for name in self._objects.children(folder):
            times = self._listed[folder, name] = self._listed.get((folder, name), 0) + 1
            if times > self._late:
                shown.append(name)
        return shown

    def __getattr__(self, name):
        return getattr(self._objects, name)
