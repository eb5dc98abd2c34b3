"""A disk that records what is done to a directory, to show what a crash could leave of it.

What a process writes is durable only once it is synced: the content of a file by fsync of the file,
and names by fsync of their directory. Until then a crash may leave any of it, in any order; see
fsync(2), and Pillai et al., "All File Systems Are Not Created Equal", OSDI 2014.
"""

import builtins
import errno
import io
import os
import random
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

NAMES = ("mkdir", "create", "rename", "unlink", "rmdir")
"""Operations on names; the others are `data` and the two kinds of sync."""


@dataclass
class Operation:
    """Something that was done.

    Attributes:
        kind: One of NAMES, `data`, `sync` of a file or `sync-names` of a directory.
        path: To what, below the recorded directory.
        to: The new name, of `rename`.
        content: The content then, of `data`.
    """

    kind: str
    path: str
    to: str = ""
    content: bytes = b""


@dataclass
class RecordedDisk:
    """Records operations below `root` within `recording`.

    Attributes:
        operations: What was done so far.
        fail_at: The number of the operation that fails.
        error: How it fails, an errno.
    """

    root: Path
    operations: list[Operation] = field(default_factory=list)
    fail_at: int | None = None
    error: int = errno.EIO

    @contextmanager
    def recording(self):
        """Record what this process does."""
        originals = {
            (module, name): getattr(module, name)
            for module, name in [
                (os, "mkdir"), (os, "rename"), (os, "unlink"), (os, "rmdir"), (os, "fsync"),
                (os, "replace"), (os, "remove"), (io, "open"), (builtins, "open"),
            ]
        }  # fmt: skip
        for (module, name), original in originals.items():
            setattr(module, name, self._recorded(name, original))
        try:
            yield self
        finally:
            for (module, name), original in originals.items():
                setattr(module, name, original)

    def _recorded(self, name, original):
        kinds = {"replace": "rename", "remove": "unlink"}

        def call(path, *rest, **keys):
            operation = self._operation(kinds.get(name, name), path, rest, keys)
            if operation is None:
                return original(path, *rest, **keys)
            self._fail_if_due()
            result = original(path, *rest, **keys)  # what fails by itself does nothing
            self.operations.append(operation)
            return result

        def sync(fd):
            path = Path(f"/proc/self/fd/{fd}").resolve()
            below = self._below(path)
            if below is not None and not path.is_dir():
                self._fail_if_due()
                self.operations.append(Operation("data", below, content=path.read_bytes()))
            if below is not None:
                self._fail_if_due()
            original(fd)
            if below is not None:
                kind = "sync-names" if path.is_dir() else "sync"
                self.operations.append(Operation(kind, below))

        return sync if name == "fsync" else call

    def _operation(self, kind, path, rest, keys):
        """What a call does below the root; None if it changes nothing there."""
        below = self._below(path, keys.get("dir_fd"))
        if kind == "open":
            mode = rest[0] if rest else keys.get("mode", "r")
            return Operation("create", below) if set(mode) & set("xw") and below else None
        if below is None:
            return None
        return Operation(kind, below, self._below(rest[0]) if kind == "rename" else "")

    def _fail_if_due(self):
        if self.fail_at == len(self.operations):
            self.operations.append(Operation("failed", ""))
            raise OSError(self.error, os.strerror(self.error))

    def _below(self, path, dir_fd=None):
        """The path below the root; None if it is elsewhere."""
        if not isinstance(path, str | Path):
            return None
        base = Path(f"/proc/self/fd/{dir_fd}").resolve() if dir_fd is not None else Path.cwd()
        with suppress(ValueError):
            return _named((base / path).relative_to(self.root))
        return None


def _named(path):
    """A path below the root; empty for the root."""
    return "" if str(path) == "." else str(path)


def after_crash(operations, to, chance):
    """Write to the directory `to` what a crash after `operations` may leave.

    Args:
        operations: What was done before the crash.
        to: An empty directory.
        chance: Draws what happened to operations that were not durable; None: all of them happened.
    """
    durable = _durable(operations)
    dropped = {"none": 0.0, "all": 1.0}.get(chance.choice(["none", "all", "some"]), 0.5)
    contents = dict[str, bytes]()  # by path: the content of each file
    directories = {""}
    for number, operation in enumerate(operations):
        if number not in durable and operation.kind in NAMES and chance.random() < dropped:
            continue
        _apply(operation, contents, directories, chance, is_durable=number in durable)
    for path in sorted(directories - {""}):
        (to / path).mkdir(parents=True, exist_ok=True)
    for path, content in contents.items():
        (to / path).write_bytes(content)


def _durable(operations):
    """The numbers of operations that no crash undoes."""
    synced, durable = dict[str, int](), set()
    for number, operation in reversed(list(enumerate(operations))):
        if operation.kind in ("sync", "sync-names"):
            synced.setdefault(operation.path, number)
        elif operation.kind == "data":
            if operation.path in synced:
                durable.add(number)
        elif synced.get(_named(Path(operation.path).parent), -1) > number:
            durable.add(number)
    return durable


def _apply(operation, contents, directories, chance, *, is_durable):
    """Apply an operation, if there is what it is about."""
    path, to, parent = operation.path, operation.to, _named(Path(operation.path).parent)
    match operation.kind:
        case "mkdir" if parent in directories:
            directories.add(path)
        case "create" if parent in directories:
            contents[path] = b""
        case "data" if path in contents:
            contents[path] = operation.content if is_durable else _torn(operation.content, chance)
        case "rename" if path in directories and to not in directories:
            directories.remove(path)
            directories.add(to)
            for each in [each for each in contents if each.startswith(path + "/")]:
                contents[to + each.removeprefix(path)] = contents.pop(each)
        case "rename" if path in contents:
            contents[to] = contents.pop(path)
        case "unlink":
            contents.pop(path, None)
        case "rmdir" if not any(each.startswith(path + "/") for each in contents):
            directories.discard(path)


def _torn(content, chance):
    """What a crash may leave of a write: all, nothing, a beginning, or a page of zeros in it."""
    cut = chance.randrange(len(content) + 1)
    zeros = content[:cut] + bytes(min(4096, len(content) - cut)) + content[cut + 4096 :]
    return chance.choice([content, b"", content[:cut], zeros])


def points(operations, variants, seed):
    """Crashes after each operation, in some `variants`: how many operations, and a `Random`."""
    for count in range(len(operations) + 1):
        for variant in range(variants):
            yield count, random.Random(f"{seed} {count} {variant}")
