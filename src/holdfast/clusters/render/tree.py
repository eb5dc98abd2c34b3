"""A tree of files: the text of each by its path below the folder that is rendered."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import yaml

from holdfast.errors import JobError
from holdfast.linux.files import replace_synced

Document: TypeAlias = dict[str, Any]
"""A manifest, as plain data."""
Tree: TypeAlias = dict[str, str]


class _Dumper(yaml.SafeDumper):
    """Writes what is used twice out twice, and text of several lines as a block."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - yaml's own signature
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
    style = "|" if "\n" in value else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)


def yaml_of(*documents: Document | list[Document]) -> str:
    """The documents as YAML."""
    return yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, width=10**6)


def below(folder: str, tree: Mapping[str, str]) -> Tree:
    """Tree with its files below `folder`."""
    return {f"{folder}/{path}": text for path, text in tree.items()}


def write(tree: Mapping[str, str], out: Path) -> None:
    """Write all files. Those of the same names are replaced, and others stay.

    Raises:
        JobError: A file cannot be written.
    """
    try:
        for path, text in tree.items():
            target = out / path
            target.parent.mkdir(parents=True, exist_ok=True)
            replace_synced(target, text.encode())
            if path.endswith(".sh"):
                target.chmod(0o755)
    except OSError as error:
        raise JobError(
            f"{error.filename or out}: {error.strerror}; fix that, or name another folder by --out"
        ) from None
