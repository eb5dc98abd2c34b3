"""Pods: what all pods of a run have, by the rules of Pod Security `restricted` and stricter.

/etc/holdfast        the job                    read-only
/etc/holdfast-join   the token for agents       read-only
/etc/holdfast-metrics   the token for those who read metrics   read-only
/runs                run directories
/tmp, /dev/shm       scratch
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from holdfast.clusters.render.objects import Document, documents, labels, mebibytes
from holdfast.clusters.render.plan import RenderPlan

DISK: Final = "20Gi"
"""For the run directory of a pod: whole checkpoints, metrics, logs."""
TOKEN: Final = "join.token"  # noqa: S105 - its file's name
TOKEN_FILE: Final = f"/etc/holdfast-join/{TOKEN}"
JOB_FILE: Final = "/etc/holdfast/job.yaml"
API_ACCESS: Final = "/var/run/secrets/kubernetes.io/serviceaccount"
"""Folder in which a container that talks to Kubernetes has what it needs for that."""
JOIN_PORT: Final = 50051
CONTROL_PORT: Final = 50052
METRICS_PORT: Final = 9400
METRICS_TOKEN_FILE: Final = "/etc/holdfast-metrics/token"  # noqa: S105 - its path
OF_CONTAINER: Final[Document] = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
}


def run_directory(plan: RenderPlan) -> str:
    """The run's directory in each of its pods."""
    return f"/runs/{plan.name}"


def amounts_of(plan: RenderPlan) -> dict[str, str]:
    """The cores and the memory of a container that trains."""
    return {"cpu": str(plan.cpus), "memory": mebibytes(plan.memory_bytes)}


def with_gpus(plan: RenderPlan) -> dict[str, str]:
    """Cores, memory and the GPUs that the job needs."""
    gpus = {"nvidia.com/gpu": str(plan.gpus)} if plan.needs_gpus else {}
    return amounts_of(plan) | gpus


def worker_container(
    plan: RenderPlan,
    command: Sequence[str],
    mounts: dict[str, str],
    amounts: dict[str, str] | None = None,
    **parts: Any,
) -> Document:
    """A container that trains, or has as much around it as one that does; see `container`.

    Args:
        plan: Plan of the run.
        command: Words that it runs.
        mounts: Mounts of volumes besides those for run directories and shared memory.
        amounts: Its requests and limits; by default those of one that trains.
        parts: Its other fields.
    """
    return container(
        plan,
        "holdfast",
        command,
        amounts=amounts or amounts_of(plan),
        env=[
            {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "HOME", "value": "/tmp"},  # noqa: S108 - a volume of the pod
        ],
        mounts={"runs": "/runs", "shm": "/dev/shm", **mounts},  # noqa: S108
        **parts,
    )


def small_container(
    plan: RenderPlan, name: str, command: Sequence[str], mounts: dict[str, str], **parts: Any
) -> Document:
    """A container next to the one that trains, which needs little; see `container`."""
    amounts = {"cpu": "250m", "memory": "256Mi"}
    return container(plan, name, command, amounts=amounts, env=[], mounts=mounts, **parts)


def container(
    plan: RenderPlan,
    name: str,
    command: Sequence[str],
    *,
    amounts: dict[str, str],
    env: list[Document],
    mounts: dict[str, str],
    **parts: Any,
) -> Document:
    """A container of the run's image.

    Args:
        plan: Plan of the run.
        name: Its name.
        command: Words that it runs; none if that is for an operator to say.
        amounts: Its requests, which are its limits.
        env: Its environment variables.
        mounts: Paths of volumes, by their names; those of /etc are read-only.
        parts: Its other fields.
    """
    # Images made for CUDA show all GPUs of the node to a pod that has asked for none.
    no_gpus = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}
    mounted = [
        {"name": volume, "mountPath": path} | ({"readOnly": True} if path[:5] == "/etc/" else {})
        for volume, path in {**mounts, "tmp": "/tmp"}.items()  # noqa: S108
    ]
    return {
        "name": name,
        "image": plan.image,
        **({"command": list(command)} if command else {}),
        "env": [*env, *([] if "nvidia.com/gpu" in amounts else [no_gpus])],
        "resources": {"requests": dict(amounts), "limits": dict(amounts)},
        "securityContext": OF_CONTAINER,
        "volumeMounts": mounted,
        **parts,
    }


def pod(
    plan: RenderPlan,
    component: str,
    containers: Sequence[Document],
    volumes: Sequence[Document],
    *,
    grace_s: int,
    **parts: Any,
) -> Document:
    """The template of a pod.

    Args:
        plan: Plan of the run.
        component: Part of the run that it is.
        containers: Its containers.
        volumes: Besides those that every pod has.
        grace_s: Between the request to end and SIGKILL.
        parts: Its other fields.
    """
    template = documents(
        plan, "pod", component=component, of_component=labels(plan, component), grace_s=grace_s
    )[0]
    scratch = documents(plan, "volumes", shm=mebibytes(plan.memory_bytes // 2))[0]
    template["spec"] |= {
        **parts,
        "containers": list(containers),
        "volumes": [*scratch, *volumes],
    }
    return template
