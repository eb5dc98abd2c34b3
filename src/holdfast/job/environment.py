"""Environment: the variables that a job sets for its workers, checked.

A value is in `job.yaml`, which every host and every run directory has a copy of. So a variable that
looks like a secret is refused, and its value never repeated.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Final, TypeAlias

from pydantic import BeforeValidator
from pydantic_core import PydanticCustomError

from holdfast.job.environment_names import TAKEN

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_SECRET: Final = re.compile(
    r"(^|_)(TOKENS?|SECRETS?|PASSWORDS?|PASSWD|PASSPHRASE|CREDENTIALS?|PSK|APIKEY|"
    r"(API|ACCESS|PRIVATE|SECRET|AUTH|ENCRYPTION)_KEYS?(_ID)?)($|_)",
    re.IGNORECASE,
)


def _checked(given: object) -> object:
    """The variables as text; what is no mapping is left to pydantic."""
    if not isinstance(given, Mapping):
        return given
    secrets = [str(name) for name in given if _SECRET.search(str(name))]
    if secrets:
        raise PydanticCustomError(
            "withheld",
            "{names} looks like a secret, and every run directory has a copy of the job; set it in "
            "the environment of each host, which workers inherit, and remove it here",
            {"names": " and ".join(secrets)},
        )
    problems = [problem for name, value in given.items() for problem in _problems(name, value)]
    if problems:
        raise ValueError("; ".join(problems))
    return {name: str(value) for name, value in given.items()}


def _problems(name: object, value: object) -> Iterator[str]:
    if not (isinstance(name, str) and _NAME.fullmatch(name)):
        yield f"{name!r} is no name of a variable; use letters, digits and underscores"
        return
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        yield f"{name} should be text or a number; write it in quotes"
    elif "\0" in str(value):
        yield f"{name} contains a null character; remove it"
    if name in TAKEN:
        yield f"{name} is not the job's to set; {TAKEN[name]}"


Environment: TypeAlias = Annotated[dict[str, str], BeforeValidator(_checked)]
