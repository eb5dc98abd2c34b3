"""Loading: from a job's name or file and `key=value` overrides to a checked job."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import yaml
from pydantic import ValidationError

from holdfast.errors import JobError
from holdfast.job import JOB_FILE, mistakes
from holdfast.job.run_keys import RunKeys
from holdfast.job.script_job import ScriptJob
from holdfast.job.source import YamlSource
from holdfast.job.spec import Job, is_script
from holdfast.job.train_job import TrainJob, TrainRequest

J = TypeVar("J", bound=RunKeys)

BUILTIN = Path(__file__).parent / "builtin"
_FILE: Final = (".yaml", ".yml")
"""The last part of the name of a job's file."""


def builtin_names() -> list[str]:
    """The names of the built-in jobs."""
    return sorted(path.stem for path in BUILTIN.glob("*.yaml"))


def summary(name: str) -> str:
    """The first line of a built-in job's description."""
    first = (BUILTIN / f"{name}.yaml").read_text(encoding="utf-8").splitlines()[0]
    return first.removeprefix("# ")


def load(
    job: str, overrides: Iterable[str] = (), values: Mapping[str, Any] | None = None
) -> TrainRequest:
    """The job called `job` with `overrides` applied.

    Args:
        job: A path that ends in .yaml or .yml, a built-in name, or a reference to your own task.
        overrides: `key=value` each, where key may be dotted and value is YAML.
        values: Further values by key, which are not parsed.

    Raises:
        JobError: There is no such job, or a key or value in it is wrong.
    """
    given = source(job)
    if job.endswith(_FILE):
        _locate_files(given.values, Path(job).parent)
    return _overridden(given, job, overrides, values or {})


def resumed(run_dir: Path, overrides: Iterable[str] = ()) -> TrainRequest:
    """The job of a run directory with `overrides` applied; see `load`."""
    path = str(run_dir / JOB_FILE)
    return _overridden(source(path), path, overrides, {})


def _overridden(
    given: YamlSource, job: str, overrides: Iterable[str], values: Mapping[str, Any]
) -> TrainRequest:
    for override in overrides:
        given.override(override)
    for key, value in values.items():
        given.assign(key, value, f"{key}={value!r}")
    if is_script(given.values):
        raise JobError(f"job {job}: use holdfast run to run a script; remove the key script")
    return _checked(TrainRequest, given.values, job, given)


def _locate_files(values: dict[str, Any], folder: Path) -> None:
    """Make the paths of the user's files, which are relative to the job's file, ones from here."""
    for key in ("task", "balance"):
        reference = values.get(key)
        if isinstance(reference, str) and ".py:" in reference:
            values[key] = str(folder / reference)
    for part, keys in (
        ("checkpoint", ("sign", "encrypt")),
        ("etcd", ("ca", "certificate", "key")),
    ):
        settings = values.get(part)
        for key in keys:
            if isinstance(settings, dict) and isinstance(settings.get(key), str):
                settings[key] = str(folder / settings[key])


def of_run(run_dir: Path) -> Job:
    """The job of a run directory, of either kind.

    Raises:
        JobError: It has no `job.yaml`, or one that this version cannot read.
    """
    path = str(run_dir / JOB_FILE)
    return _of_source(source(path), path)


def of_text(text: str, where: str) -> Job:
    """The job, of either kind, that `dump` has written as `text`.

    Raises:
        JobError: This version cannot read it; `where` names it.
    """
    return _of_source(YamlSource(text, where), where)


def _of_source(given: YamlSource, where: str) -> Job:
    if is_script(given.values):
        return _checked(ScriptJob, given.values, where, given)
    return _checked(TrainJob, given.values, where, given)


def source(job: str) -> YamlSource:
    """The unchecked content of the file of the job called `job`; the file's name is the default.

    Raises:
        JobError: There is no such job, or its file cannot be read as YAML.
    """
    if ":" in job and not job.endswith(_FILE):  # of a task, as in path/to/file.py:name
        name = re.sub(r"[^\w.-]", "-", job.rpartition(":")[2])
        return YamlSource(yaml.safe_dump({"name": name, "task": job}), job)
    if job.endswith(".py"):  # a program
        return YamlSource(yaml.safe_dump({"name": Path(job).stem, "task": f"{job}:__main__"}), job)
    path = Path(job) if job.endswith(_FILE) else BUILTIN / f"{job}.yaml"
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        names = builtin_names()
        hint = mistakes.nearest(job, names) or f"built in are {', '.join(names)}"
        raise JobError(
            f"no job {job!r}: {error.strerror}; {hint}, or give a .yaml file or "
            "your own file.py:main"
        ) from None
    except UnicodeDecodeError as error:
        raise JobError(
            f"{path} is not text in UTF-8: {error.reason} at byte {error.start}; save it as UTF-8"
        ) from None
    given = YamlSource(text, str(path))
    given.values.setdefault("name", path.stem)
    return given


def request(values: Mapping[str, Any], where: str) -> TrainRequest:
    """The request for a training job that `values` describe.

    Raises:
        JobError: A key or value is wrong; every mistake is named.
    """
    return _checked(TrainRequest, values, where, None)


def check(values: Mapping[str, Any], where: str) -> TrainJob:
    """The training job that `values` describe, as at its first start; see `request`."""
    return request(values, where).resolved()


def checked(values: Mapping[str, Any], where: str) -> TrainJob:
    """The resolved training job that `values` describe; see `request`."""
    return _checked(TrainJob, values, where, None)


def check_script(values: Mapping[str, Any], where: str, overrides: Iterable[str] = ()) -> ScriptJob:
    """The job with a script that `values` describe, with `overrides` applied; see `check`."""
    given = YamlSource("{}", where)
    for key, value in values.items():
        given.assign(key, value, f"{key}={value!r}")
    for override in overrides:
        given.override(override)
    return _checked(ScriptJob, given.values, where, given)


def dump(job: Job | TrainRequest, without: Collection[str] = ()) -> str:
    """The job as YAML that `load` or `of_run` reads back as the same job, except for some keys."""
    plain = job.model_dump(mode="json", exclude={*without})
    if plain.get("program", job) is None:
        del plain["program"]
    return yaml.safe_dump(plain, sort_keys=False)


def _checked(kind: type[J], values: Mapping[str, Any], where: str, given: YamlSource | None) -> J:
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise JobError(f"job {where}{mistakes.named(error, values, given)}") from None
