"""Hosts as network namespaces, for one test."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.errors import HoldfastError
from holdfast.testing.namespaces import Namespaces


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
