"""The holdfast of this process: which code it is, and a wheel of it for other hosts.

A wheel is a zip archive with a list of its files (PyPA, "Binary distribution format").
"""

from __future__ import annotations

import base64
import hashlib
import zipfile
from importlib.metadata import distribution, distributions, version
from pathlib import Path
from typing import Final

_PACKAGE: Final = Path(__file__).parents[2]
_WHEEL: Final = (
    "Wheel-Version: 1.0\nGenerator: holdfast\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
)


def version_of_code() -> str:
    """The version, and a digest of the code: both are the same on hosts that fit together."""
    digest = hashlib.sha256()
    for name, content in _files().items():
        digest.update(f"{name} {len(content)}\n".encode() + content)
    return f"{version('holdfast')}+{digest.hexdigest()[:8]}"


def build(folder: Path) -> Path:
    """Write a wheel into a folder; returns its path."""
    own = distribution("holdfast")
    about = f"holdfast-{own.version}.dist-info"
    files = {f"holdfast/{name}": content for name, content in _files().items()}
    for name, text in {
        "METADATA": own.read_text("METADATA") or "",
        "entry_points.txt": own.read_text("entry_points.txt") or "",
        "WHEEL": _WHEEL,
    }.items():
        files[f"{about}/{name}"] = text.encode()
    record = [f"{name},{_hash(content)},{len(content)}" for name, content in files.items()]
    record.append(f"{about}/RECORD,,")
    files[f"{about}/RECORD"] = "\n".join(record).encode()
    path = folder / f"holdfast-{own.version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def constraints() -> str:
    """The versions of all packages of this process, as a file of constraints for pip."""
    found = {each.name: each.version for each in distributions() if each.name != "holdfast"}
    return "".join(f"{name}=={number}\n" for name, number in sorted(found.items()))


def _files() -> dict[str, bytes]:
    paths = (path for path in _PACKAGE.rglob("*") if "__pycache__" not in path.parts)
    names = sorted(path.relative_to(_PACKAGE).as_posix() for path in paths if path.is_file())
    return {name: (_PACKAGE / name).read_bytes() for name in names}


def _hash(content: bytes) -> str:
    digest = hashlib.sha256(content).digest()
    return f"sha256={base64.urlsafe_b64encode(digest).rstrip(b'=').decode()}"
