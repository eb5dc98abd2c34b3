"""The hosts file of `--on ssh:FILE`.

# host, as ssh names it       options
node-1
node-2                        python=/opt/holdfast/bin/python
trainer@10.0.0.3              slots=2
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pydantic import Field, ValidationError

from holdfast.errors import JobError
from holdfast.strict import Strict

MADE_PYTHON: Final = ".local/share/holdfast/bin/python"
"""In the home directory: what `holdfast hosts setup` makes."""


class SshHost(Strict):
    """A line of the file.

    Attributes:
        name: The host, as ssh names it: a line of its configuration, an address, or user@address.
        python: Its Python, which has holdfast.
        slots: Number of agents that may run there.
    """

    name: str = Field(pattern=r"^[^-\s]\S*$")  # a leading - would be an option of ssh
    python: str = Field(default=MADE_PYTHON, min_length=1)
    slots: int = Field(default=1, ge=1, le=64)


def read(path: Path) -> list[SshHost]:
    """The hosts in a file.

    Raises:
        JobError: It cannot be read, names no host or one twice, or a line is wrong.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise JobError(f"hosts file {path} cannot be read: {error}; name one: ssh:FILE") from None
    hosts: dict[str, SshHost] = {}
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if words:
            host = _host(words, f"{path}:{number}")
            if host.name in hosts:
                raise JobError(f"{path}:{number}: {host.name} is there twice; use slots=2")
            hosts[host.name] = host
    if not hosts:
        raise JobError(f"hosts file {path} names no host; write one host a line")
    return list(hosts.values())


def _host(words: list[str], where: str) -> SshHost:
    options = dict(word.partition("=")[::2] for word in words[1:])
    try:
        return SshHost.model_validate({**options, "name": words[0]})
    except ValidationError as error:
        first = error.errors()[0]
        what = ".".join(map(str, first["loc"]))
        raise JobError(
            f"{where}: {what}: {first['msg']}; a line is HOST [python=PATH] [slots=N]"
        ) from None
