"""References: `package.module:name` or `path/to/file.py:name`, and the code that they name."""

from __future__ import annotations

import importlib
import importlib.util
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from holdfast.errors import JobError
from holdfast.job.models import BertSpec, Gpt2Spec, MistralSpec
from holdfast.job.program import Program
from holdfast.tasks import by_value

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
"""What imports the libraries of some models, which takes seconds."""

_FILE_MODULE: Final = "__holdfast_task__"
"""The module name of a task's file: not `__main__`, so code under its main guard does not run."""

POLICY_MODULE: Final = "__holdfast_policy__"
"""The same for the file of a balance policy, if that is another one."""

_importing: list[Path] = []
"""Files of tasks that this process imports just now."""


def imported_by(task: str, model: object) -> list[str]:
    """References that every worker of a job imports: its task, and the library of its model."""
    needed = [] if task.startswith(by_value.PREFIX) else [task]
    library = _LIBRARIES.get(type(model))
    return [*needed, *([library] if library is not None else [])]


def load_of(program: Program | None, reference: str) -> Callable[..., Any]:
    """The class or function of a task, in a process whose `sys.argv` is that of its program.

    Args:
        program: The program that asked for the run; None if a command did.
        reference: Names the task.

    Raises:
        JobError: See `load`.
    """
    place = reference.rpartition(":")[0]
    sys.argv = [place] if program is None else list(program.argv)
    return load(reference)


def load(reference: str, file_module: str = _FILE_MODULE) -> Callable[..., Any]:
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
    for known in (sys.modules.get(_FILE_MODULE), sys.modules.get(name)):
        if known is not None and known.__file__ == str(path):
            return known
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise JobError(f"task file {path} does not exist")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.parent))
    _importing.append(path)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    finally:
        _importing.pop()
    return module


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
    file = getattr(sys.modules.get(str(module)), "__file__", None)
    has_file = file is not None and Path(file).exists()  # standard input has the name <stdin>
    if module is None or "<" in name or (module == "__main__" and not has_file):
        return None
    return f"{Path(str(file)).resolve()}:{name}" if module == "__main__" else f"{module}:{name}"
