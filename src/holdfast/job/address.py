"""Addresses in a job. They hold no credentials: every run directory has a copy of the job."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError


def _without_credentials(address: str) -> str:
    """Refuse an address with a user or a query without repeating it."""
    try:
        parts = urlsplit(address)
    except ValueError:
        raise ValueError("should be an address such as http://host:5000") from None
    if "@" in parts.netloc or parts.query:
        raise PydanticCustomError(
            "withheld",
            "input should be an address without a user, password or query: every run directory "
            "has a copy of the job; set credentials by environment variables",
        )
    return address


Address = Annotated[str, Field(min_length=1), AfterValidator(_without_credentials)]
