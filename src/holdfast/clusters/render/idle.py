"""Idle pods: a Deployment whose pods wait for work, which `--on kubernetes` gives them."""

from __future__ import annotations

from typing import Final

from holdfast.clusters.render.components import on_gpus
from holdfast.clusters.render.limits import namespace
from holdfast.clusters.render.objects import Tree, kustomization, labels, manifest, yaml_of
from holdfast.clusters.render.plan import RenderPlan
from holdfast.clusters.render.pods import DISK, pod, with_gpus, worker_container

IDLE: Final = "idle"
_GRACE_S: Final = 60
_WAIT: Final = "trap 'exit 0' TERM; sleep infinity & wait"
"""A process 1 that ends when it is asked to."""


def idle(plan: RenderPlan) -> Tree:
    """The folder to apply in place of an overlay."""
    name = plan.named(IDLE)
    account = manifest(plan, "ServiceAccount", "v1", name, IDLE, automountServiceAccountToken=False)
    main = worker_container(plan, ["sh", "-c", _WAIT], {}, with_gpus(plan))
    main["env"].append({"name": "XDG_STATE_HOME", "value": "/runs"})
    volumes = [{"name": "runs", "emptyDir": {"sizeLimit": DISK}}]
    template = pod(plan, IDLE, [main], volumes, grace_s=_GRACE_S, restartPolicy="Always")
    on_gpus(plan, template)
    selector = {"matchLabels": labels(plan, IDLE)}
    spec = {"replicas": plan.hosts, "selector": selector, "template": template}
    deployment = manifest(plan, "Deployment", "apps/v1", name, IDLE, spec=spec)
    files = {"namespace.yaml": [namespace(plan)], "idle.yaml": [account, deployment]}
    manifests = {path: yaml_of(*documents) for path, documents in files.items()}
    return manifests | kustomization(resources=list(files))
