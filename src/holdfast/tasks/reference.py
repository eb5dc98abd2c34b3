"""References: `package.module:name` or `path/to/file.py:name`, and the code that they name."""

from __future__ import annotations

import builtins
import importlib
import shlex
import sys
from collections.abc import Callable
from functools import partial
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Final

from holdfast.errors import JobError
from holdfast.job.models import BertSpec, Gpt2Spec, MistralSpec
from holdfast.tasks import by_value, main_guard

BUILTIN: Final = {
    "classification": "holdfast.tasks.classification:Classification",
    "language": "holdfast.tasks.language:LanguageModelling",
    "qlora": "holdfast.tasks.qlora:QLora",
    "masked-language": "holdfast.tasks.language:MaskedLanguageModelling",
}

_LIBRARIES: Final[dict[type[object], str]] = {
    Gpt2Spec: "holdfast.models.huggingface:build",
    BertSpec: "holdfast.models.huggingface:build",
    MistralSpec: "holdfast.models.mistral:network",
}
"""Builders that import the libraries of some models, which takes seconds."""

MAIN: Final = "__main__"
"""The module of a task's file, as in the program: classes and pickles name it."""

POLICY_MODULE: Final = "__holdfast_policy__"
"""The same for the file of a balance policy, if that is another one."""

_MAINS: Final = {MAIN, "__mp_main__"}
"""Names of the program in its process, and in children of multiprocessing, whose results name it
by the second.
"""

_importing: list[str] = []
"""Files and modules of tasks that this process imports just now."""


def imported_by(task: str, model: object) -> list[str]:
    """References that every worker of a job imports: its task, and the library of its model."""
    needed = [] if task.startswith(by_value.PREFIX) else [task]
    library = _LIBRARIES.get(type(model))
    return [*needed, *([library] if library is not None else [])]


def load(reference: str, file_module: str = MAIN) -> Callable[..., Any]:
    """The class or function that `reference` names.

    Args:
        reference: Names it.
        file_module: The name of the module that a file becomes.

    Raises:
        JobError: The module cannot be imported, or does not have that name.
    """
    if reference.startswith(by_value.PREFIX):
        return by_value.unpacked(reference)
    place, _, name = BUILTIN.get(reference, reference).rpartition(":")
    if not place:
        raise JobError(
            f"no task {reference!r}; use a built-in one ({', '.join(BUILTIN)}) or your own as "
            "package.module:name or path/to/file.py:name"
        )
    _importing.append(place)
    try:
        module = _from_file(Path(place), file_module) if place.endswith(".py") else _imported(place)
    except JobError:
        raise
    except SystemExit as end:
        raise JobError(
            f"task {reference}: {place} ended with SystemExit: {end.code} while it was imported, "
            f"where its command line is {shlex.join(sys.argv)!r}; give options to a program that "
            "calls holdfast.train, or read them from session.job.params (params.NAME=VALUE)"
        ) from end
    except Exception as error:  # the user's module may raise anything
        raise JobError(
            f"task {reference}: importing {place} failed with {type(error).__name__}: {error}"
        ) from error
    finally:
        _importing.pop()
    if name == main_guard.PROGRAM and place.endswith(".py"):
        return partial(_run, main_guard.program(Path(place)), module)
    target: Any = module
    for part in name.split("."):
        target = getattr(target, part, None)
    if not callable(target):
        raise JobError(f"task {reference}: {place} has no class or function {name}")
    return target  # type: ignore[no-any-return]  # just checked


def _imported(place: str) -> ModuleType:
    """The module `package.module`, or `folder/package.module` of sources from another host."""
    folder, _, module = place.rpartition("/")
    if folder and folder not in sys.path:
        sys.path.insert(0, folder)
    return importlib.import_module(module)


def _from_file(path: Path, name: str) -> ModuleType:
    """The module of a file, executed as a program is, except for the code under its main guard."""
    file = str(path.absolute())
    for known in (sys.modules[MAIN], sys.modules.get(name)):
        if getattr(known, "__file__", None) == file:
            return known  # type: ignore[return-value]  # it has an attribute
    if not path.is_file():
        raise JobError(f"task file {path} does not exist")
    code = compile(main_guard.without_guards(path), file, "exec", dont_inherit=True)
    module = ModuleType(name)
    module.__file__ = file
    module.__loader__ = SourceFileLoader(name, file)
    vars(module).update(__annotations__={}, __builtins__=builtins)
    names = _MAINS if name == MAIN else {name}
    before = {each: sys.modules[each] for each in names & sys.modules.keys()}
    sys.modules.update(dict.fromkeys(names, module))
    sys.path.insert(0, str(path.parent))
    try:
        _run(code, module)
    except BaseException:
        for each in names:
            del sys.modules[each]
        sys.modules.update(before)
        raise
    return module


def _run(code: CodeType, module: ModuleType) -> None:
    exec(code, vars(module))  # noqa: S102  # the user's own code


def refuse_while_importing() -> None:
    """Raises: JobError: A task's file is being imported, and starts a run."""
    if _importing:
        raise JobError(
            f"{_importing[-1]} starts a run while it is imported, and every worker imports it; put "
            'the call of holdfast.train under `if __name__ == "__main__":`'
        )


def of(function: Callable[..., Any]) -> str | None:
    """The reference by which other processes find `function`; None if they cannot import it."""
    module = getattr(function, "__module__", None)
    name = getattr(function, "__qualname__", "<>")
    if module is None or "<" in name:
        return None
    if module not in _MAINS:
        return f"{module}:{name}"
    main = sys.modules[module]
    spec = getattr(main, "__spec__", None)
    file = Path(getattr(main, "__file__", None) or "<stdin>")
    if name.partition(".")[0] not in vars(main):  # python -m cProfile runs programs in a dict
        return None
    if spec is not None and spec.name not in _MAINS and spec.origin == str(file):
        return f"{spec.name}:{name}"  # started with python -m
    return f"{file.resolve()}:{name}" if file.exists() else None
