"""The kustomize tree of a job.

base/        everything that runs on any cluster
overlays/    what to apply: the base for one kind of cluster
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.render.access import access
from holdfast.render.agents import agents
from holdfast.render.coordinator import coordinator
from holdfast.render.limits import limits, namespace
from holdfast.render.network import network
from holdfast.render.plan import Plan
from holdfast.render.tree import Document, Tree, below, yaml_of


def kubernetes(plan: Plan) -> Tree:
    """All files for Kubernetes, by their paths below the folder that is rendered."""
    return {**below("base", _base(plan)), **below("overlays/cpu", _overlay())}


def _base(plan: Plan) -> Tree:
    files = {
        "namespace.yaml": [namespace(plan)],
        "access.yaml": access(plan),
        "network.yaml": network(plan),
        "limits.yaml": limits(plan),
        "coordinator.yaml": coordinator(plan),
        "agents.yaml": agents(plan),
    }
    job = {
        "name": plan.named("job"),
        "namespace": plan.namespace,
        "files": ["job.yaml"],
    }
    return {
        **_manifests(files),
        "job.yaml": plan.job,
        "kustomization.yaml": yaml_of(
            {
                "apiVersion": "kustomize.config.k8s.io/v1beta1",
                "kind": "Kustomization",
                "resources": list(files),
                "configMapGenerator": [job],
            }
        ),
    }


def _manifests(files: Mapping[str, Sequence[Document]]) -> Tree:
    return {path: yaml_of(*documents) for path, documents in files.items()}


def _overlay() -> Tree:
    overlay: Document = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": ["../../base"],
    }
    return {"kustomization.yaml": yaml_of(overlay)}
