"""Overlays: the base for one kind of cluster; what to apply.

Those of clouds have agents on spot nodes with GPUs, and the coordinator on an ordinary node. Their
script makes the node pools: with the labels and taints that the components use, and sizes for the
run.
"""

from __future__ import annotations

from typing import Final

from holdfast.clusters.render.components import toleration
from holdfast.clusters.render.kustomization import appended, kustomization, merged
from holdfast.clusters.render.node_pools import aks, eks, gke
from holdfast.clusters.render.plan import Plan
from holdfast.clusters.render.tree import Document, Tree, below

_AKS_SPOT: Final = "kubernetes.azure.com/scalesetpriority"
"""AKS adds this taint to spot nodes itself."""


def overlays(plan: Plan) -> Tree:
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
        **below("gke", _overlay("gpu", "spot") | {"node-pools.sh": gke(plan)}),
        **below("eks", _overlay("gpu", "spot", patches=[volume]) | {"node-pools.sh": eks(plan)}),
        **below("aks", _overlay("gpu", "spot", patches=[spot]) | {"node-pools.sh": aks(plan)}),
    }


def _overlay(*components: str, patches: list[Document] | None = None) -> Tree:
    added = {"components": [f"../../components/{name}" for name in components]}
    return kustomization(
        resources=["../../base"],
        **(added if components else {}),
        **({"patches": patches} if patches else {}),
    )
