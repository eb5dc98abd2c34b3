"""Kustomizations: what a folder consists of, and what a component changes in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.clusters.render.objects import Document, Tree, yaml_of
from holdfast.clusters.render.plan import RenderPlan


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
    return _file("v1beta1", "Kustomization", parts)


def component(**parts: Any) -> Tree:
    """The file of a folder that changes what includes it."""
    return _file("v1alpha1", "Component", parts)


def _file(version: str, kind: str, parts: Mapping[str, Any]) -> Tree:
    head = {"apiVersion": f"kustomize.config.k8s.io/{version}", "kind": kind}
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
