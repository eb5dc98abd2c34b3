"""The kustomize tree of a job.

base/          everything that runs on any cluster
components/    what an overlay may add to it
overlays/      what to apply: the base for one kind of cluster
idle/          in place of these, pods that wait for work
rayjob/        in place of these, a RayJob of KubeRay
trainjob/      in place of these, a TrainJob of Kubeflow Trainer
"""

from __future__ import annotations

import json
import shlex
from typing import Final

from holdfast.clusters.render import agents, coordinator
from holdfast.clusters.render.coordinator import GRACE_S, OTHER_PODS, SIZE_BYTES, volume
from holdfast.clusters.render.objects import (
    AGENT,
    COORDINATOR,
    FILES,
    Document,
    Tree,
    appended,
    below,
    documents,
    filled,
    kustomization,
    labels,
    manifest,
    mebibytes,
    merged,
    with_job,
    yaml_of,
)
from holdfast.clusters.render.plan import RenderPlan
from holdfast.clusters.render.pods import (
    DISK,
    JOB_FILE,
    METRICS_PORT,
    container,
    pod,
    run_directory,
    with_gpus,
    worker_container,
)


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
        "coordinator.yaml": coordinator.coordinator(plan),
        "agents.yaml": [agents.agents(plan)],
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


IDLE: Final = "idle"
_GRACE_S: Final = 60
_WAIT: Final = "trap 'exit 0' TERM; sleep infinity & wait"
"""A process 1 that ends when it is asked to."""


def idle(plan: RenderPlan) -> Tree:
    """The folder of pods that wait for work, which `--on kubernetes` gives them."""
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


def trainjob(plan: RenderPlan) -> Tree:
    """The folder of a TrainJob of Kubeflow Trainer, with the runtime that it refers to.

    The runtime's JobSet has the two Jobs of the base: it is done when the coordinator is. Pods that
    fail are replaced by these Jobs; the JobSet itself would restart all of them.
    """
    files = {
        "namespace.yaml": [namespace(plan)],
        "access.yaml": access(plan),
        "network.yaml": [*network(plan), *documents(plan, "network-trainer")],
        "limits.yaml": [
            *limits(plan, OTHER_PODS, SIZE_BYTES),
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


RAY: Final = "2.60.0"
"""The version that the image must have."""
_RAY_PODS: Final = 2
"""The head and the submitter."""
_HEAD_BYTES: Final = 4 << 30
_HEAD: Final = {"cpu": "1", "memory": mebibytes(_HEAD_BYTES)}
_SUBMITTER: Final = {"cpu": "500m", "memory": "1024Mi"}
_SUBMITTER_GRACE_S: Final = 30


def rayjob(plan: RenderPlan) -> Tree:
    """The folder of a RayJob of KubeRay: a Ray cluster for one run, on which Ray places the agents.

        submitter ─▶ head: holdfast train --on ray ─▶ one agent on each Ray worker

    The head trains nothing. It has the volume with the run directory, so that another attempt of
    the RayJob continues the run. KubeRay replaces lost pods, and holdfast starts agents on them.
    """
    files = {
        "namespace.yaml": [namespace(plan)],
        "access.yaml": documents(plan, "accounts"),
        "network.yaml": [*network(plan), *documents(plan, "network-ray")],
        "limits.yaml": limits(plan, _RAY_PODS, _HEAD_BYTES),
        "volume.yaml": [volume(plan)],
        "rayjob.yaml": [_rayjob(plan)],
    }
    return with_job(plan, files, is_followed=False)


def _rayjob(plan: RenderPlan) -> Document:
    return documents(
        plan,
        "rayjob",
        entrypoint=json.dumps(shlex.join(["sh", "-c", _script(plan)])),
        submitter=_submitter(plan),
        ray=RAY,
        head=_head(plan),
        agents=plan.hosts,
        least=plan.least_hosts,
        worker=_worker(plan),
    )[0]


def _script(plan: RenderPlan) -> str:
    run = run_directory(plan)
    begin = ["holdfast", "train", JOB_FILE, "--on", "ray", "--run", run]
    return (
        f"set -- {shlex.join(begin)}; "
        f'if [ -e {run}/job.yaml ]; then set -- "$@" --resume; fi; exec "$@"'
    )


def _head(plan: RenderPlan) -> Document:
    main = worker_container(plan, [], {"job": JOB_FILE.rpartition("/")[0]}, _HEAD)
    volumes: list[Document] = [
        {"name": "job", "configMap": {"name": plan.named("job")}},
        {"name": "runs", "persistentVolumeClaim": {"claimName": plan.named("runs")}},
    ]
    return pod(plan, COORDINATOR, [main], volumes, grace_s=GRACE_S)


def _worker(plan: RenderPlan) -> Document:
    main = worker_container(plan, [], {}, with_gpus(plan))
    volumes: list[Document] = [{"name": "runs", "emptyDir": {"sizeLimit": DISK}}]
    return on_gpus(plan, pod(plan, AGENT, [main], volumes, grace_s=agents.GRACE_S))


def _submitter(plan: RenderPlan) -> Document:
    main = container(plan, "submitter", [], amounts=_SUBMITTER, env=[], mounts={})
    return pod(plan, COORDINATOR, [main], [], grace_s=_SUBMITTER_GRACE_S)


def access(plan: RenderPlan) -> list[Document]:
    """All accounts, rights and Secrets of a run whose coordinator makes tokens."""
    return [*documents(plan, "accounts"), *documents(plan, "join")]


MONITORING: Final = "holdfast-monitoring"
"""The namespace of Prometheus."""


def network(plan: RenderPlan) -> list[Document]:
    """The network policies of a run, without those for an operator."""
    policies = documents(plan, "network")
    if plan.has_metrics:
        policies += documents(plan, "network-metrics", monitoring=MONITORING, port=METRICS_PORT)
    return policies


_SPARE_PODS: Final = 2
"""A pod that replaces one that is still terminating counts in addition to it."""
_SMALL_CPUS: Final = 1
_SMALL_BYTES: Final = 256 << 20
"""For the small containers of a pod."""


def namespace(plan: RenderPlan) -> Document:
    """The namespace, which refuses pods with privileges."""
    return documents(plan, "namespace")[0]


def limits(plan: RenderPlan, others: int, largest_bytes: int) -> list[Document]:
    """The quota of the namespace, and the limits of a container.

    Args:
        plan: Plan of the run.
        others: Pods that do not train.
        largest_bytes: Memory of the largest container of these.
    """
    pods = plan.hosts + others + _SPARE_PODS
    return documents(
        plan,
        "limits",
        pods=pods,
        cpus=pods * (plan.cpus + _SMALL_CPUS),
        memory=mebibytes(pods * (plan.memory_bytes + _SMALL_BYTES)),
        gpus=(plan.hosts + _SPARE_PODS) * plan.gpus,
        max_cpus=plan.cpus,
        max_memory=mebibytes(max(plan.memory_bytes, largest_bytes)),
    )


def disruptions(plan: RenderPlan) -> Document:
    """Limit of evictions: one agent at a time, or as many as the run can begin without."""
    return documents(plan, "disruptions", least=min(plan.hosts - 1, plan.least_hosts))[0]


POOL: Final = {"holdfast/pool": "gpu"}
"""Label of the nodes with GPUs that runs may use."""
GPU_TAINT: Final = "nvidia.com/gpu"
_CAPABILITIES: Final = {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "compute,utility"}


def components(plan: RenderPlan) -> Tree:
    """The folders of all components, which an overlay adds to the base.

    gpu    agents on nodes with GPUs; each pod sees its own only, as the device plugin says
    spot   agents on nodes that the cloud may take away at short notice: GKE leaves a pod 15 s. An
           agent needs less: it leaves, and the others continue with its shards
    rwx    a volume that all pods share, for data
    """
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
        for each in spec["containers"]:
            each["env"].append(_CAPABILITIES)
    return template
