"""Components: what an overlay adds to the base.

gpu    agents on nodes with GPUs; each pod sees its own only
spot   agents on nodes that the cloud may take away at short notice
rwx    a volume that all pods share, for data
"""

from __future__ import annotations

from typing import Any, Final

from holdfast.clusters.render.objects import (
    COORDINATOR,
    Document,
    Tree,
    appended,
    below,
    component,
    manifest,
    merged,
    yaml_of,
)
from holdfast.clusters.render.plan import RenderPlan

POOL: Final = {"holdfast/pool": "gpu"}
"""Label of the nodes with GPUs that runs may use."""
SPOT: Final = {"holdfast/spot": "true"}
"""Label of spot nodes; their taint is the same."""
GPU_TAINT: Final = "nvidia.com/gpu"
_CAPABILITIES: Final = {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "compute,utility"}
_GRACE_S: Final = 15
"""The shortest time that a cloud leaves to a pod on a spot node (GKE). An agent needs less: it
leaves, and the others continue with its shards."""
_DATA: Final = "/data"
_DATA_SIZE: Final = "100Gi"


def components(plan: RenderPlan) -> Tree:
    """The folders of all components."""
    return {
        **below("gpu", _gpu(plan)),
        **below("spot", _spot(plan)),
        **below("rwx", _rwx(plan)),
    }


def job_patch(name: str, **spec: Any) -> Document:
    """A patch that is merged into the specification of a Job's pods."""
    return merged("Job", "batch/v1", name, spec={"template": {"spec": spec}})


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


def _gpu(plan: RenderPlan) -> Tree:
    gpus = {"nvidia.com/gpu": str(plan.gpus)}
    container = {
        "name": "holdfast",
        "resources": {"requests": gpus, "limits": gpus},
        "env": [
            {"name": "NVIDIA_VISIBLE_DEVICES", "$patch": "delete"},  # the device plugin sets it
            _CAPABILITIES,
        ],
    }
    name = plan.named("agents")
    return component(
        patches=[
            job_patch(name, nodeSelector=POOL, containers=[container]),
            appended("Job", name, tolerations=toleration(GPU_TAINT)),
        ]
    )


def _spot(plan: RenderPlan) -> Tree:
    name = plan.named("agents")
    return component(
        patches=[
            job_patch(name, nodeSelector=SPOT, terminationGracePeriodSeconds=_GRACE_S),
            appended("Job", name, tolerations=toleration(next(iter(SPOT)))),
        ]
    )


def _rwx(plan: RenderPlan) -> Tree:
    claim = manifest(
        plan,
        "PersistentVolumeClaim",
        "v1",
        plan.named("data"),
        spec={
            "accessModes": ["ReadWriteMany"],
            "resources": {"requests": {"storage": _DATA_SIZE}},
        },
    )
    patches = [
        job_patch(
            name,
            containers=[
                {"name": "holdfast", "volumeMounts": [{"name": "data", "mountPath": _DATA}]}
            ],
            volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": plan.named("data")}}],
        )
        for name in (plan.named(COORDINATOR), plan.named("agents"))
    ]
    return {"data.yaml": yaml_of(claim)} | component(resources=["data.yaml"], patches=patches)
