"""Which code of the user a run executes, and how it differs from that of a checkpoint. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_SHOWN: Final = 12
"""How much of a commit or digest is shown, characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeVersion:
    """The user's code, as far as it is known.

    Attributes:
        commit: Of the git repository that it is in; None if there is none.
        is_modified: Whether files of the repository differ from that.
        task_sha256: The digest of the file that defines the task; None if that is no file.
    """

    commit: str | None = None
    is_modified: bool = False
    task_sha256: str | None = None


UNKNOWN: Final = CodeVersion()


def changes(before: CodeVersion, now: CodeVersion) -> dict[str, str]:
    """How the code differs from what it was, as far as both are known: `before` and `now` in words;
    empty if it does not.
    """
    if before.commit and now.commit and _of_commit(before) != _of_commit(now):
        return {"before": _of_commit(before), "now": _of_commit(now)}
    if before.task_sha256 and now.task_sha256 and before.task_sha256 != now.task_sha256:
        return {"before": _of_file(before.task_sha256), "now": _of_file(now.task_sha256)}
    return {}


def _of_commit(code: CodeVersion) -> str:
    return f"commit {code.commit:.{_SHOWN}}" + (" with changes" if code.is_modified else "")


def _of_file(sha256: str) -> str:
    return f"a task with SHA-256 {sha256:.{_SHOWN}}"
