"""A TrainJob of Kubeflow Trainer, with the runtime that it refers to.

The runtime's JobSet has the two Jobs of the base: it is done when the coordinator is. Pods that
fail are replaced by these Jobs; the JobSet itself would restart all of them.
"""

from __future__ import annotations

from typing import Final

from holdfast.clusters.render import agents, coordinator
from holdfast.clusters.render.access import access
from holdfast.clusters.render.components import on_gpus
from holdfast.clusters.render.limits import disruptions, limits, namespace
from holdfast.clusters.render.network import network, trainer_access
from holdfast.clusters.render.objects import AGENT, COORDINATOR, Document, Tree, manifest, with_job
from holdfast.clusters.render.plan import RenderPlan
from holdfast.clusters.render.pods import with_gpus

VERSION: Final = "trainer.kubeflow.org/v1alpha1"
_NODE: Final = "node"
"""What Trainer calls the Job whose pods it counts as nodes."""
_TRAINS: Final = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}


def trainjob(plan: RenderPlan) -> Tree:
    """The folder to apply in place of an overlay."""
    files = {
        "namespace.yaml": [namespace(plan)],
        "access.yaml": access(plan),
        "network.yaml": [*network(plan), trainer_access(plan)],
        "limits.yaml": [
            *limits(plan, coordinator.OTHER_PODS, coordinator.SIZE_BYTES),
            disruptions(plan),
        ],
        "volume.yaml": [coordinator.volume(plan)],
        "runtime.yaml": [_runtime(plan)],
        "trainjob.yaml": [_trainjob(plan)],
    }
    return with_job(plan, files, is_followed=False)


def _trainjob(plan: RenderPlan) -> Document:
    group, _, _ = VERSION.partition("/")
    runtime = {"apiGroup": group, "kind": "TrainingRuntime", "name": plan.name}
    spec = {"runtimeRef": runtime, "trainer": {"numNodes": plan.hosts}}
    return manifest(plan, "TrainJob", VERSION, plan.name, spec=spec)


def _runtime(plan: RenderPlan) -> Document:
    # JobSet names a pod by its Job, the number of that Job and its own, below the JobSet's name.
    host = f"{plan.named(COORDINATOR)}-0-0.{plan.name}"
    agents_job = agents.job_of(plan, host, with_gpus(plan))
    on_gpus(plan, agents_job["template"])
    agents_job["template"]["metadata"]["labels"] |= _TRAINS  # Trainer takes progress of such pods
    jobset = {
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
        "successPolicy": {"operator": "All", "targetReplicatedJobs": [COORDINATOR]},
        "failurePolicy": {"maxRestarts": 0},
        "replicatedJobs": [
            {
                "name": COORDINATOR,
                "replicas": 1,
                "template": {"spec": coordinator.job_of(plan)},
            },
            {
                "name": _NODE,
                "replicas": 1,
                "template": {"metadata": {"labels": _TRAINS}, "spec": agents_job},
            },
        ],
    }
    spec = {"mlPolicy": {"numNodes": plan.hosts}, "template": {"spec": jobset}}
    return manifest(plan, "TrainingRuntime", VERSION, plan.name, AGENT, spec=spec)
