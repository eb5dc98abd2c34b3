"""Program: what the program that asks for a run has changed since its import, for its workers.

Under torchrun, code under the main guard runs in every process. Here it runs in one, and workers
import the same sources. So globals that can differ afterwards are described with the job, and set
in workers once these have imported the task. The sources say which can: see `tasks.assigned`.
"""

from __future__ import annotations

import enum
import hashlib
import json
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import import_module
from importlib.util import resolve_name
from pathlib import Path
from types import FrameType, FunctionType, ModuleType
from typing import Any, Final

from holdfast.errors import JobError
from holdfast.job.settings import Program
from holdfast.tasks import reference
from holdfast.tasks.assigned import Assigned, assigned_in
from holdfast.tasks.by_value import PREFIX
from holdfast.tasks.described import MUTABLE, describe, is_own, rebuilt, replace_content
from holdfast.tasks.reference import MAIN

MAX_BYTES: Final = 64 << 10
MAX_COMPARED_BYTES: Final = 4 << 10
"""Longer descriptions of what no assignment names are compared by digest."""


def belongs_to_program(task: str) -> bool:
    """True if a task is defined in the main module of this process."""
    main = sys.modules[MAIN]
    place = task.rpartition(":")[0]
    if place.endswith(".py"):
        file = getattr(main, "__file__", None)
        return file is not None and Path(place).resolve() == Path(file).resolve()
    return place == getattr(getattr(main, "__spec__", None), "name", None)


def calling_program(task: str) -> Program:
    """The program of this process, as workers of `task` need it.

    Raises:
        JobError: It has changed more than travels with a job.
    """
    place = task.rpartition(":")[0]
    # What workers call the module of the program.
    main = place if belongs_to_program(task) and not place.endswith(".py") else MAIN
    sources = {module.__name__: (module, assigned) for module, assigned in _sources(task)}
    everywhere = [assigned for _, assigned in sources.values()]
    attributes = set[str]().union(*(each.attributes for each in everywhere))
    of_imports = set[str]().union(*(each.of_imports for each in everywhere))
    is_dynamic = any(each.is_dynamic for each in everywhere)
    changed = {}
    for name in _imported(task, sources):
        if name not in sources or (name == MAIN and task.startswith(PREFIX)):
            continue  # code by value brings the globals of the program that it uses
        module, own = sources[name]
        # Modules can be changed from all places, and the program from its own source only.
        rebound = own.rebound if name == MAIN else own.rebound | of_imports
        used = own.used if name == MAIN else {*vars(module)}
        assigned = replace(
            own, attributes=attributes, rebound=rebound, used=used, is_dynamic=is_dynamic
        )
        if changes := dict(_changes(module, assigned, main)):
            changed[main if name == MAIN else name] = changes
    _check_size(changed)
    torch = sys.modules.get("torch")
    dtype = str(torch.get_default_dtype()) if torch else ""
    return Program(argv=tuple(sys.argv), changed=json.dumps(changed), dtype=dtype)


def load(program: Program | None, task: str) -> Callable[..., Any]:
    """The class or function of a task, in a process that gets what its program has.

    Args:
        program: The program that asked for the run; None if a command did.
        task: Names the class or function.

    Raises:
        JobError: See `reference.load`; or a value is not described, and differs.
    """
    sys.argv = [task.rpartition(":")[0]] if program is None else list(program.argv)
    found = reference.load(task)
    if program is not None:
        if program.dtype:
            torch = import_module("torch")
            torch.set_default_dtype(getattr(torch, program.dtype.removeprefix("torch.")))
        for module, changes in json.loads(program.changed).items():
            for path, (how, described) in changes.items():
                _change(module, path, how, described)
    return found


def _sources(task: str) -> Iterator[tuple[ModuleType, Assigned]]:
    """The user's modules around this program and its task, with what their sources assign."""
    main = Path(getattr(sys.modules[MAIN], "__file__", None) or "here").absolute()
    package = sys.modules.get(task.partition(".")[0].partition(":")[0])
    of_task = Path(getattr(package, "__file__", None) or main)
    roots = [main.parent, Path.cwd(), of_task.parents[of_task.name == "__init__.py"]]
    if not main.is_file():  # a notebook may have changed anything
        yield ModuleType("notebook"), Assigned(is_dynamic=True)
    for name, module in sys.modules.copy().items():
        file = Path(getattr(module, "__file__", None) or "/")
        is_near = any(map(file.is_relative_to, roots))
        if is_near and name == getattr(module, "__name__", "") and is_own(name):
            try:
                yield module, assigned_in(file.read_bytes(), _line_of(module))
            except (OSError, SyntaxError, ValueError):  # it is no Python source any more
                continue


def _imported(task: str, sources: dict[str, tuple[ModuleType, Assigned]]) -> list[str]:
    """The names of the modules that a task imports, at once or late, and of its own."""
    names = [_module_of(task)]
    for name in names:  # it grows
        if name in sources:
            module, assigned = sources[name]
            imported = [_absolute(each, module.__package__) for each in sorted(assigned.modules)]
            names += [each for each in imported if each not in names]
    return names


def _absolute(name: str, package: str | None) -> str:
    try:
        return resolve_name(name, package or "none")
    except ImportError:  # nothing can import it either
        return name


def _module_of(task: str) -> str:
    """The name of the module of a task in this process; that of the program for its own code."""
    place = task.rpartition(":")[0]
    if belongs_to_program(task) or task.startswith(PREFIX):
        return MAIN
    files = {getattr(each, "__file__", None): name for name, each in sys.modules.copy().items()}
    return files.get(place, place)


def _line_of(module: ModuleType) -> float:
    """The line that a program executes in its outermost frame."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_globals is vars(module):
            return frame.f_lineno
        frame = frame.f_back
    return math.inf


def _changes(module: ModuleType, assigned: Assigned, main: str) -> Iterator[tuple[str, Any]]:
    """Paths of values that can have changed since the import, with how, and their descriptions.

    rebound   the name was assigned
    changed   the value was changed in place
    maybe     no assignment names it, and it may have changed in place
    """
    for name, value in list(vars(module).items()):
        if name not in assigned.used or name[:2] == "__" or isinstance(value, ModuleType):
            continue
        if isinstance(value, type) and value.__module__ == module.__name__:
            for attribute, each in list(vars(value).items()):
                can_change = attribute in assigned.attributes or assigned.is_dynamic
                if can_change and not attribute.startswith("__") and _is_plain(each):
                    yield f"{value.__qualname__}.{attribute}", ["rebound", describe(each, main)]
        described = describe(value, main)
        kind = described[0] if isinstance(described, list) else ""
        is_code = isinstance(value, type | FunctionType)
        if name in assigned.rebound:
            yield name, ["rebound", described]
        elif name in assigned.changed:
            yield name, ["changed", described]
        elif kind in MUTABLE or (assigned.is_dynamic and not (is_code or kind == "opaque")):
            text = json.dumps(described)
            if len(text) > MAX_COMPARED_BYTES:
                described = ["digest", f"{type(value).__name__} of this size", _digest(text)]
            yield name, ["maybe", described]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _is_plain(value: object) -> bool:
    is_code = callable(value) or hasattr(value, "__get__") or hasattr(value, "__set__")
    return not is_code and not isinstance(value, enum.Enum)


def _check_size(changed: dict[str, dict[str, Any]]) -> None:
    sizes = {path: len(json.dumps(each)) for of in changed.values() for path, each in of.items()}
    if sum(sizes.values()) > MAX_BYTES:
        raise JobError(
            f"the global {max(sizes, key=lambda path: sizes[path])} and others that this program "
            f"may change after its import take more than {MAX_BYTES >> 10} KiB, too much to "
            "travel with a job; build or load them in the training function"
        )


def _change(module: str, path: str, how: str, described: Any) -> None:
    """Give a global of this process the value that the program has.

    Raises:
        JobError: It cannot be rebuilt.
    """
    *outer, name = path.split(".")
    try:
        owner: Any = sys.modules.get(module) or import_module(module)
        for each in outer:
            owner = getattr(owner, each)
    except Exception:  # noqa: BLE001  # a module of the user; the task does not use it, or raises too
        return
    is_there = name in vars(owner)
    old = vars(owner).get(name)
    text = json.dumps(describe(old, MAIN))
    if isinstance(described, list) and described[0] == "digest":
        is_same = is_there and _digest(text) == described[-1]
    else:
        is_same = is_there and text == json.dumps(described)
    if is_same and how == "maybe":  # what is not described in it is as it was
        return
    try:
        new = rebuilt(described)
    except ValueError as error:
        if not is_there:  # the task does not use it, or raises NameError as in Python
            return
        raise JobError(
            f"the program has changed {path} of {getattr(owner, '__file__', module)} after its "
            f"import, and its workers cannot be given a {error}; put what it is made of into "
            "params, or build it in the training function"
        ) from None
    if not is_same and not (how != "rebound" and replace_content(old, new)):
        setattr(owner, name, new)
