"""Libraries of the `data` extra, which only some data sets need."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from holdfast.errors import JobError


def library(name: str) -> Any:
    """The module called `name`.

    Raises:
        JobError: It is not installed.
    """
    try:
        return import_module(name)
    except ImportError:
        raise JobError(f"{name} is not installed: pip install 'holdfast[data]'") from None
