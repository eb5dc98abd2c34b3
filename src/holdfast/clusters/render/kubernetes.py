"""The kustomize tree of a job.

base/          everything that runs on any cluster
components/    what an overlay may add to it
overlays/      what to apply: the base for one kind of cluster
"""

from __future__ import annotations

from holdfast.clusters.render.access import access
from holdfast.clusters.render.agents import agents
from holdfast.clusters.render.components import components
from holdfast.clusters.render.coordinator import OTHER_PODS, SIZE_BYTES, coordinator
from holdfast.clusters.render.kustomization import with_job
from holdfast.clusters.render.limits import disruptions, limits, namespace
from holdfast.clusters.render.monitoring import monitoring
from holdfast.clusters.render.network import network
from holdfast.clusters.render.overlays import overlays
from holdfast.clusters.render.plan import Plan
from holdfast.clusters.render.rayjob import rayjob
from holdfast.clusters.render.trainjob import trainjob
from holdfast.clusters.render.tree import Tree, below


def kubernetes(plan: Plan, shown: Tree | None = None) -> Tree:
    """All files for Kubernetes, by their paths below the folder that is rendered.

    Args:
        plan: Plan of the run.
        shown: See `monitoring`, of a plan with metrics.
    """
    return {
        **below("base", _base(plan)),
        **below("components", components(plan)),
        **below("overlays", overlays(plan)),
        **below("rayjob", rayjob(plan)),
        **below("trainjob", trainjob(plan)),
        **(below("monitoring", monitoring(plan, shown or {})) if plan.has_metrics else {}),
    }


def _base(plan: Plan) -> Tree:
    files = {
        "namespace.yaml": [namespace(plan)],
        "access.yaml": access(plan),
        "network.yaml": network(plan),
        "limits.yaml": [*limits(plan, OTHER_PODS, SIZE_BYTES), disruptions(plan)],
        "coordinator.yaml": coordinator(plan),
        "agents.yaml": [agents(plan)],
    }
    return with_job(plan, files)
