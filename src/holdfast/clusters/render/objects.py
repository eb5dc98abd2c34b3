"""Common parts of all objects of a run, and the kustomizations that folders of them have."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any, Final, TypeAlias

import yaml

from holdfast.clusters.render.plan import RenderPlan
from holdfast.errors import JobError
from holdfast.linux.files import replace_synced

COORDINATOR: Final = "coordinator"
AGENT: Final = "agent"
FILES: Final = Path(__file__).with_name("files")
"""Files that are the same for all jobs, except for a few placeholders."""


def labels(plan: RenderPlan, component: str | None = None) -> dict[str, str]:
    """The labels of an object, or of what belongs to the run if it is of no component."""
    part = {} if component is None else {"app.kubernetes.io/component": component}
    return {"app.kubernetes.io/name": "holdfast", "app.kubernetes.io/instance": plan.name, **part}


def manifest(
    plan: RenderPlan, kind: str, version: str, name: str, component: str | None = None, **parts: Any
) -> Document:
    """An object in the namespace of the run.

    Args:
        plan: Plan of the run.
        kind, version: Names of both in Kubernetes.
        name: Its name.
        component: Part of the run that it belongs to, if only one.
        parts: Its fields besides those that every object has.
    """
    metadata = {"name": name, "namespace": plan.namespace, "labels": labels(plan, component)}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **parts}


def mebibytes(size_bytes: int) -> str:
    """A size as a quantity of Kubernetes, rounded up."""
    return f"{-(-size_bytes // (1 << 20))}Mi"


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


class _Placeholders(Template):
    delimiter = "%"  # scripts have variables of the shell


def filled(path: str, /, **values: object) -> str:
    """One of `FILES`, with values in place of `%{name}`."""
    return _Placeholders((FILES / path).read_text(encoding="utf-8")).substitute(values)


def documents(plan: RenderPlan, file: str, **values: object) -> list[Document]:
    """The objects in one of the manifests of `FILES`, for a run.

    Args:
        plan: Plan of the run, whose name, namespace and labels any of them may have.
        file: The manifest.
        values: Its other values. Mappings are inserted as JSON, which YAML includes.
    """
    known = {
        "name": plan.name,
        "namespace": plan.namespace,
        "of_run": labels(plan),
        **{f"of_{each}": labels(plan, each) for each in (COORDINATOR, AGENT)},
        **values,
    }
    texts = {
        name: json.dumps(value, ensure_ascii=False) if isinstance(value, Mapping) else value
        for name, value in known.items()
    }
    return list(yaml.safe_load_all(filled(f"manifests/{file}.yaml", **texts)))


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


def with_job(
    plan: RenderPlan, files: Mapping[str, Sequence[Document]], *, is_followed: bool = True
) -> Tree:
    """A folder of manifests, and the job for them.

    Args:
        plan: Plan of the run.
        files: The documents of each file.
        is_followed: True if kustomize knows where the manifests name the job's ConfigMap. If not,
            its name has no digest of the job.
    """
    manifests = {path: yaml_of(*documents) for path, documents in files.items()}
    job: Document = {"name": plan.named("job"), "namespace": plan.namespace}
    job["files"] = ["job.yaml"]
    if not is_followed:
        job["options"] = {"disableNameSuffixHash": True}
    whole = kustomization(resources=list(files), configMapGenerator=[job])
    return manifests | {"job.yaml": plan.job} | whole


def kustomization(**parts: Any) -> Tree:
    """The file of a folder to apply."""
    head = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"}
    return {"kustomization.yaml": yaml_of({**head, **parts})}


def merged(kind: str, version: str, name: str, **parts: Any) -> Document:
    """A patch that is merged into an object: lists of what has names by these names."""
    patch = {"apiVersion": version, "kind": kind, "metadata": {"name": name}, **parts}
    return {"patch": yaml_of(patch), "target": {"kind": kind, "name": name}}


def appended(kind: str, name: str, **lists: Document) -> Document:
    """A patch that appends to lists of the pods of an object, which have no names to merge by.

    Args:
        kind, name: The object.
        lists: Items that are appended to each list.
    """
    additions = [
        {"op": "add", "path": f"/spec/template/spec/{key}/-", "value": value}
        for key, value in lists.items()
    ]
    return {"patch": yaml_of(additions), "target": {"kind": kind, "name": name}}
