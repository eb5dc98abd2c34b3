"""Program that `holdfast pods run` executes in a pod: `python3 -c PROGRAM ACTION NAME …`.

It needs nothing but Python, so this file imports nothing else.

    run     reads sources from standard input, and runs a command in a folder with them; the command
            ends when standard input is closed
    gather  writes to standard output what the command has left there, as a zip file, and removes it
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import zipfile
from contextlib import suppress
from pathlib import Path

END_S = 30.0
"""Time that a command may take to end after SIGINT."""
MAX_BYTES = 1 << 30
"""The most that is gathered."""
WRONG_STATUS = 125
"""The exit status if the command was not begun."""
_SHIPPED = ".holdfast-shipped"


def main(action: str, name: str, *rest: str) -> int:
    """Do one of the two; returns the exit status."""
    folder = Path(tempfile.gettempdir()) / name
    return gather(folder) if action == "gather" else run(folder, *rest)


def run(folder: Path, digest: str, size: str, *command: str) -> int:
    """Run a command in a new folder.

    Args:
        folder: The folder.
        digest: SHA-256 of the zip file with the sources, hexadecimal.
        size: Its size in bytes.
        command: The command.
    """
    packed = sys.stdin.buffer.read(int(size))
    if hashlib.sha256(packed).hexdigest() != digest:
        print("the sources did not arrive whole; try again", file=sys.stderr)
        return WRONG_STATUS
    folder.mkdir(mode=0o700)
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        archive.extractall(folder)
        (folder / _SHIPPED).write_text(json.dumps(archive.namelist()), encoding="utf-8")
    try:
        process = subprocess.Popen(
            command, cwd=folder, stdin=subprocess.DEVNULL, start_new_session=True
        )
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        return 127
    threading.Thread(target=_end_when_closed, args=[process], daemon=True).start()
    status = process.wait()
    _signal(process, signal.SIGKILL)  # what it has left behind
    return status if status >= 0 else 128 - status


def gather(folder: Path) -> int:
    """Write the files of a folder but the sources, and remove it."""
    try:
        shipped = set(json.loads((folder / _SHIPPED).read_text(encoding="utf-8")))
    except FileNotFoundError:
        shipped = set()
    names = {
        path: path.relative_to(folder).as_posix()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink() and path.parent.name != "__pycache__"
    }
    wanted = [path for path, name in names.items() if name not in {*shipped, _SHIPPED}]
    size_bytes = sum(path.stat().st_size for path in wanted)
    if size_bytes > MAX_BYTES:
        print(f"{folder} has {size_bytes} bytes, too many to gather; it stays", file=sys.stderr)
        return WRONG_STATUS
    with zipfile.ZipFile(sys.stdout.buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in wanted:
            with suppress(FileNotFoundError):
                archive.write(path, names[path])
    shutil.rmtree(folder, ignore_errors=True)
    return 0


def _end_when_closed(process: subprocess.Popen[bytes]) -> None:
    while os.read(0, 1):  # not by sys.stdin, which the interpreter needs to end
        pass
    _signal(process, signal.SIGINT)
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        _signal(process, signal.SIGKILL)


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
