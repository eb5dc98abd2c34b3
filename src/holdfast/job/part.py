"""The base class and common types of the parts of a job."""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

Count = Annotated[int, Field(ge=1)]
Fraction = Annotated[float, Field(ge=0, lt=1)]

Workers = Annotated[int, Field(ge=1, le=1024)]
MAX_SHARDS: Final = 4096
Shards = Annotated[int, Field(ge=1, le=MAX_SHARDS)]
Threads = Annotated[int, Field(ge=1, le=1024)]
Port = Annotated[int, Field(ge=0, le=65535)]

AUTO: Final = "auto"
VALUE: Final = "value"
"""What errors call the other alternative to `auto`."""


Auto: TypeAlias = Annotated[Literal["auto"], Tag(AUTO)]
OneOf: Final = Discriminator(lambda value: AUTO if value == AUTO else VALUE)
"""Has pydantic check a value as `auto` or as the other, so that a message is about one of them."""
AutoWorkers = Annotated[Annotated[Workers, Tag(VALUE)] | Auto, OneOf]
AutoShards = Annotated[Annotated[Shards, Tag(VALUE)] | Auto, OneOf]
AutoThreads = Annotated[Annotated[Threads, Tag(VALUE)] | Auto, OneOf]
AutoFlag = Annotated[Annotated[bool, Tag(VALUE)] | Auto, OneOf]


class Spec(BaseModel):
    """A part of a job: immutable; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


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
