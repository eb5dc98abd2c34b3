"""Hosts as network namespaces, for one test."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.errors import HoldfastError
from holdfast_bench.on_hosts.namespaces import Namespaces

needs_iptables = pytest.mark.skipif(
    shutil.which("iptables") is None, reason="dropping single packets needs iptables"
)


@contextmanager
def namespaces(tmp_path: Path, count: int) -> Iterator[Namespaces]:
    """Hosts for one test, which is skipped where there can be none."""
    if missing := Namespaces.what_is_missing():
        pytest.skip(missing)
    hosts = Namespaces(tmp_path / "disk", count)
    try:
        try:
            hosts.up()
        except HoldfastError as error:
            pytest.skip(str(error))
        yield hosts
    finally:
        hosts.down()
