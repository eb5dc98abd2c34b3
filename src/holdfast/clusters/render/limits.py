"""The namespace, and what may be used in it."""

from __future__ import annotations

from typing import Final

from holdfast.clusters.render.objects import AGENT, Document, labels, manifest, mebibytes
from holdfast.clusters.render.plan import RenderPlan

_SPARE_PODS: Final = 2
"""A pod that replaces one that is still terminating counts in addition to it."""
_SMALL_CPUS: Final = 1
_SMALL_BYTES: Final = 256 << 20
"""For the small containers of a pod."""


def namespace(plan: RenderPlan) -> Document:
    """The namespace, which refuses pods with privileges."""
    enforced = {
        f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "audit", "warn")
    }
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": plan.namespace, "labels": enforced | labels(plan)},
    }


def limits(plan: RenderPlan, others: int, largest_bytes: int) -> list[Document]:
    """The quota of the namespace, and the limits of a container.

    Args:
        plan: Plan of the run.
        others: Pods that do not train.
        largest_bytes: Memory of the largest container of these.
    """
    pods = plan.hosts + others + _SPARE_PODS
    cpus = str(pods * (plan.cpus + _SMALL_CPUS))
    memory = mebibytes(pods * (plan.memory_bytes + _SMALL_BYTES))
    quota = {
        "pods": str(pods),
        "requests.cpu": cpus,
        "limits.cpu": cpus,
        "requests.memory": memory,
        "limits.memory": memory,
        "requests.nvidia.com/gpu": str((plan.hosts + _SPARE_PODS) * plan.gpus),
        "persistentvolumeclaims": "4",
        "services": "2",
        "services.loadbalancers": "0",
        "services.nodeports": "0",
    }
    small = {"cpu": "250m", "memory": "256Mi"}
    container = {
        "type": "Container",
        "default": dict(small),
        "defaultRequest": dict(small),
        "max": {
            "cpu": str(plan.cpus),
            "memory": mebibytes(max(plan.memory_bytes, largest_bytes)),
        },
    }
    return [
        manifest(plan, "ResourceQuota", "v1", plan.name, spec={"hard": quota}),
        manifest(plan, "LimitRange", "v1", plan.name, spec={"limits": [container]}),
    ]


def disruptions(plan: RenderPlan) -> Document:
    """Limit of evictions: one agent at a time, as the others continue without it.

    A number of pods, as a Job has no scale of which to take a share.
    """
    return manifest(
        plan,
        "PodDisruptionBudget",
        "policy/v1",
        plan.named("agents"),
        AGENT,
        spec={
            "minAvailable": plan.hosts - 1,
            "selector": {"matchLabels": labels(plan, AGENT)},
        },
    )
