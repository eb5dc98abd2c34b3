"""The kustomize tree of a job.

base/          everything that runs on any cluster
components/    what an overlay may add to it
overlays/      what to apply: the base for one kind of cluster
"""

from __future__ import annotations

from holdfast.render.access import access
from holdfast.render.agents import agents
from holdfast.render.components import components
from holdfast.render.coordinator import OTHER_PODS, SIZE_BYTES, coordinator
from holdfast.render.kustomization import with_job
from holdfast.render.limits import disruptions, limits, namespace
from holdfast.render.monitoring import monitoring
from holdfast.render.network import network
from holdfast.render.overlays import overlays
from holdfast.render.plan import Plan
from holdfast.render.rayjob import rayjob
from holdfast.render.trainjob import trainjob
from holdfast.render.tree import Tree, below


def kubernetes(plan: Plan, shown: Tree | None = None) -> Tree:
    """All files for Kubernetes, by their paths below the folder that is rendered.

    Args:
        plan: Of the run.
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
