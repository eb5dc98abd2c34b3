"""The kustomize tree of a job.

base/          everything that runs on any cluster
components/    what an overlay may add to it
overlays/      what to apply: the base for one kind of cluster
idle/          in place of these, pods that wait for work
"""

from __future__ import annotations

from typing import Final

from holdfast.clusters.render.access import access
from holdfast.clusters.render.agents import agents
from holdfast.clusters.render.components import components, toleration
from holdfast.clusters.render.coordinator import OTHER_PODS, SIZE_BYTES, coordinator
from holdfast.clusters.render.idle import idle
from holdfast.clusters.render.limits import disruptions, limits, namespace
from holdfast.clusters.render.network import network
from holdfast.clusters.render.objects import (
    FILES,
    Document,
    Tree,
    appended,
    below,
    filled,
    kustomization,
    merged,
    with_job,
)
from holdfast.clusters.render.plan import RenderPlan
from holdfast.clusters.render.rayjob import rayjob
from holdfast.clusters.render.trainjob import trainjob


def kubernetes(plan: RenderPlan, shown: Tree | None = None) -> Tree:
    """All files for Kubernetes, by their paths below the folder that is rendered.

    Args:
        plan: Plan of the run.
        shown: `rules.yaml` with alert rules, and `holdfast.json` with a dashboard; of a plan with
            metrics.
    """
    return {
        **below("base", _base(plan)),
        **below("components", components(plan)),
        **below("overlays", overlays(plan)),
        **below("idle", idle(plan)),
        **below("rayjob", rayjob(plan)),
        **below("trainjob", trainjob(plan)),
        **(below("monitoring", _monitoring(plan) | (shown or {})) if plan.has_metrics else {}),
    }


def _base(plan: RenderPlan) -> Tree:
    files = {
        "namespace.yaml": [namespace(plan)],
        "access.yaml": access(plan),
        "network.yaml": network(plan),
        "limits.yaml": [*limits(plan, OTHER_PODS, SIZE_BYTES), disruptions(plan)],
        "coordinator.yaml": coordinator(plan),
        "agents.yaml": [agents(plan)],
    }
    return with_job(plan, files)


def _monitoring(plan: RenderPlan) -> Tree:
    """A namespace with Prometheus, Grafana and the exporter of GPU metrics, applied besides an
    overlay.
    """
    names = sorted(path.name for path in (FILES / "monitoring").iterdir())
    return {name: filled(f"monitoring/{name}", namespace=plan.namespace) for name in names}


_AKS_SPOT: Final = "kubernetes.azure.com/scalesetpriority"
"""AKS adds this taint to spot nodes itself."""


def overlays(plan: RenderPlan) -> Tree:
    """The folders of all overlays."""
    volume = merged(
        "PersistentVolumeClaim",
        "v1",
        plan.named("runs"),
        spec={"storageClassName": "gp2"},  # no class of EKS is the default since 1.30
    )
    spot = appended("Job", plan.named("agents"), tolerations=toleration(_AKS_SPOT))
    return {
        **below("cpu", _overlay()),
        **below("gpu", _overlay("gpu")),
        **below("spot", _overlay("spot")),
        **below("gke", _overlay("gpu", "spot") | _node_pools("gke", plan)),
        **below("eks", _overlay("gpu", "spot", patches=[volume]) | _node_pools("eks", plan)),
        **below("aks", _overlay("gpu", "spot", patches=[spot]) | _node_pools("aks", plan)),
    }


def _node_pools(cloud: str, plan: RenderPlan) -> Tree:
    """The script that makes the node pools of a cloud."""
    script = filled(f"node-pools/{cloud}.sh", gpus=plan.gpus, nodes=plan.hosts + 1)
    return {"node-pools.sh": script}


def _overlay(*components: str, patches: list[Document] | None = None) -> Tree:
    added = {"components": [f"../../components/{name}" for name in components]}
    return kustomization(
        resources=["../../base"],
        **(added if components else {}),
        **({"patches": patches} if patches else {}),
    )
