"""Components: what an overlay adds to the base.

gpu    agents on nodes with GPUs; each pod sees its own only, as the device plugin says
spot   agents on nodes that the cloud may take away at short notice: GKE leaves a pod 15 s. An agent
       needs less: it leaves, and the others continue with its shards
rwx    a volume that all pods share, for data
"""

from __future__ import annotations

from typing import Final

from holdfast.clusters.render.objects import Document, Tree, documents, filled, yaml_of
from holdfast.clusters.render.plan import RenderPlan

POOL: Final = {"holdfast/pool": "gpu"}
"""Label of the nodes with GPUs that runs may use."""
GPU_TAINT: Final = "nvidia.com/gpu"
_CAPABILITIES: Final = {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "compute,utility"}


def components(plan: RenderPlan) -> Tree:
    """The folders of all components."""
    folders = {
        f"{name}/kustomization.yaml": filled(
            f"components/{name}/kustomization.yaml", name=plan.name, gpus=plan.gpus
        )
        for name in ("gpu", "spot", "rwx")
    }
    return folders | {"rwx/data.yaml": yaml_of(*documents(plan, "data"))}


def toleration(key: str) -> Document:
    """Lets a pod run on nodes with a taint."""
    return {"key": key, "operator": "Exists", "effect": "NoSchedule"}


def on_gpus(plan: RenderPlan, template: Document) -> Document:
    """The template of a pod, on nodes with GPUs if the job says that it needs them."""
    spec = template["spec"]
    if plan.needs_gpus:
        spec["nodeSelector"] |= POOL
        spec["tolerations"].append(toleration(GPU_TAINT))
        for container in spec["containers"]:
            container["env"].append(_CAPABILITIES)
    return template
