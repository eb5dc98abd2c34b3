"""Fixtures of the tests of rendering."""

import pytest
from rendering import rendered, write_all


@pytest.fixture(scope="session")
def tree(tmp_path_factory):
    """A rendered tree in a folder."""
    return write_all(rendered(), tmp_path_factory.mktemp("rendered"))
