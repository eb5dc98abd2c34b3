"""Strict: the base of data that come from a file, another process or another host."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Strict(BaseModel):
    """Data that cannot be changed, and of which no unknown key is taken."""

    model_config = ConfigDict(extra="forbid", frozen=True)
