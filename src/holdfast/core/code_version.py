"""Version of the user's code in a run, and differences from that of a checkpoint. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_SHOWN: Final = 12
"""Length to which a commit or digest is cut, characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeVersion:
    """The user's code, as far as it is known.

    Attributes:
        commit: Commit of its git repository; None if there is none.
        is_modified: True if files of the repository differ from that.
        task_sha256: The digest of the file that defines the task; None if that is no file.
    """

    commit: str | None = None
    is_modified: bool = False
    task_sha256: str | None = None


UNKNOWN: Final = CodeVersion()


def in_words(code: CodeVersion) -> str:
    """Name of the code, as far as it is known."""
    if code.commit:
        return _of_commit(code)
    return _of_file(code.task_sha256) if code.task_sha256 else ""


def changes(before: CodeVersion, now: CodeVersion) -> dict[str, str]:
    """Differences of two versions, as far as both are known: `before` and `now` in words;
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
