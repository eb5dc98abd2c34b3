"""A TrainJob of Kubeflow Trainer, with the runtime that it refers to.

The runtime's JobSet has the two Jobs of the base: it is done when the coordinator is. Pods that
fail are replaced by these Jobs; the JobSet itself would restart all of them.
"""

from __future__ import annotations

from holdfast.clusters.render import agents, coordinator
from holdfast.clusters.render.access import access
from holdfast.clusters.render.components import on_gpus
from holdfast.clusters.render.limits import disruptions, limits, namespace
from holdfast.clusters.render.network import network
from holdfast.clusters.render.objects import COORDINATOR, Document, Tree, documents, with_job
from holdfast.clusters.render.plan import RenderPlan
from holdfast.clusters.render.pods import with_gpus


def trainjob(plan: RenderPlan) -> Tree:
    """The folder to apply in place of an overlay."""
    files = {
        "namespace.yaml": [namespace(plan)],
        "access.yaml": access(plan),
        "network.yaml": [*network(plan), *documents(plan, "network-trainer")],
        "limits.yaml": [
            *limits(plan, coordinator.OTHER_PODS, coordinator.SIZE_BYTES),
            disruptions(plan),
        ],
        "volume.yaml": [coordinator.volume(plan)],
        "runtime.yaml": [_runtime(plan)],
        "trainjob.yaml": documents(plan, "trainjob", agents=plan.hosts),
    }
    return with_job(plan, files, is_followed=False)


def _runtime(plan: RenderPlan) -> Document:
    # JobSet names a pod by its Job, the number of that Job and its own, below the JobSet's name.
    host = f"{plan.named(COORDINATOR)}-0-0.{plan.name}"
    node = agents.job_of(plan, host, with_gpus(plan))
    on_gpus(plan, node["template"])
    labels = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    node["template"]["metadata"]["labels"] |= labels  # Trainer takes progress of such pods
    return documents(
        plan, "runtime", agents=plan.hosts, coordinator=coordinator.job_of(plan), node=node
    )[0]
