"""Profile file: profiles of hosts as JSON, measured or written by a person.

{"hosts": {"node-1": {"devices": [{"name": "RTX 3060", "score": 12.7}]},
           "*": {"devices": [{"name": "GTX 1650", "score": 3.0}]}}}
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from holdfast.errors import JobError
from holdfast.hardware.profile import HostLink, HostProfile, Name

PROFILE: Final = TypeAdapter(HostProfile)
"""The profile of one host as JSON."""
ANY_HOST: Final = "*"
"""The entry of all hosts that have none of their own."""
MAX_BYTES: Final = 16 << 20
"""The largest profile file: the links of some 300 hosts."""
_SHOWN: Final = 3
"""Mistakes that are shown at once."""


class Profiles(BaseModel):
    """The profiles of several hosts.

    Attributes:
        hosts: By host name. An entry `*`, or a single entry, is that of all others, too.
        links: Between hosts.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    hosts: dict[Name, HostProfile]
    links: tuple[HostLink, ...] = ()

    def of(self, host: str) -> HostProfile | None:
        """The profile of a host; None if the file does not have it."""
        if len(self.hosts) == 1:
            return next(iter(self.hosts.values()))
        return self.hosts.get(host, self.hosts.get(ANY_HOST))

    def for_run(self) -> str:
        """JSON for a run, which uses no links."""
        return self.model_dump_json(indent=2, exclude={"links"})


def read(path: Path) -> Profiles:
    """The profiles in a file.

    Raises:
        JobError: It cannot be read, or is no profile file.
    """
    try:
        with path.open("rb") as file:
            text = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise JobError(f"profile {path}: {error.strerror}; name an existing file") from None
    return parse(text, str(path))


def parse(text: bytes, where: str) -> Profiles:
    """The profiles in a text.

    Args:
        text: JSON.
        where: Source of it, for messages.

    Raises:
        JobError: It has no profiles.
    """
    if len(text) > MAX_BYTES:
        raise JobError(f"profile {where} is larger than {MAX_BYTES >> 20} MiB; it is another file")
    try:
        profiles = Profiles.model_validate_json(text)
    except ValidationError as error:
        raise JobError(f"profile {where}: {_in_words(error)}") from None
    empty = [name for name, host in profiles.hosts.items() if not host.devices]
    if empty or not profiles.hosts:
        missing = f"hosts.{empty[0]}.devices" if empty else "hosts"
        raise JobError(
            f"profile {where}: {missing} is empty; give at least one, such as "
            '{"hosts": {"*": {"devices": [{"name": "RTX 3060", "score": 12.7}]}}}'
        )
    return profiles


def _in_words(error: ValidationError) -> str:
    mistakes = error.errors(include_url=False)
    shown = [_mistake(each) for each in mistakes[:_SHOWN]]
    more = f"; and {len(mistakes) - _SHOWN} more" if len(mistakes) > _SHOWN else ""
    return "; ".join(shown) + more


def _mistake(mistake: Any) -> str:
    place = ".".join(str(part) for part in mistake["loc"] if part != "[key]") or "all of it"
    match mistake["type"]:
        case "json_invalid":
            return f"no JSON: {mistake['ctx']['error']}"
        case "unexpected_keyword_argument" | "extra_forbidden":
            return f"unknown key {place}; remove it"
        case "missing" | "missing_keyword_only_argument":
            return f"{place} is missing"
    got = mistake["input"]
    shown = f", not {got!r:.60}" if isinstance(got, str | int | float | bool | None) else ""
    return f"{place}: {mistake['msg'][0].lower()}{mistake['msg'][1:]}{shown}"
