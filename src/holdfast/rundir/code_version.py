"""Code version: which code of the user a run executes, found once at its start.

The process that starts a run keeps it in the run directory, and hosts that join get a copy. So no
checkpoint waits for git, and all of an attempt say the same.
"""

from __future__ import annotations

import hashlib
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter, ValidationError

from holdfast.core.code_version import UNKNOWN, CodeVersion
from holdfast.linux.files import replace_synced
from holdfast.rundir.run_directory import CODE_VERSION

_JSON: Final = TypeAdapter(CodeVersion)
_GIT_TIMEOUT_S: Final = 5.0
_MODIFIED: Final = "-dirty"
_GIT: Final = (
    *("git", "--no-optional-locks", "describe", "--always", "--abbrev=64", "--exclude=*"),
    f"--dirty={_MODIFIED}",
)


def find(path: Path | None) -> CodeVersion:
    """The code of a job: the commit of the repository that its file is in, or else the working
    directory, and the digest of that file.

    Args:
        path: File with the job's own code; None if it has none, or names a module.
    """
    commit = _commit(Path.cwd() if path is None else path.parent)
    task_sha256 = None
    if path is not None:
        with suppress(OSError):  # the import of the task says what is wrong
            task_sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    return CodeVersion(
        commit=commit.removesuffix(_MODIFIED) or None,
        is_modified=commit.endswith(_MODIFIED),
        task_sha256=task_sha256,
    )


def keep(run_dir: Path, code: CodeVersion) -> None:
    """Keep with a run which code it executes."""
    replace_synced(run_dir / CODE_VERSION, _JSON.dump_json(code))


def kept(run_dir: Path) -> CodeVersion:
    """The code that was kept with a run; nothing is known of it if none was."""
    try:
        return _JSON.validate_json((run_dir / CODE_VERSION).read_bytes())
    except (OSError, ValidationError):
        return UNKNOWN


def _commit(folder: Path) -> str:
    """The commit of a folder, marked if files differ from it; empty if it is in no repository."""
    with suppress(OSError, subprocess.TimeoutExpired):
        found = subprocess.run(
            _GIT, cwd=folder, capture_output=True, text=True, check=False, timeout=_GIT_TIMEOUT_S
        )
        return found.stdout.strip() if found.returncode == 0 else ""
    return ""
