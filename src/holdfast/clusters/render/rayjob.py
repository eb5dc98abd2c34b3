"""A RayJob of KubeRay: a Ray cluster for one run, which Ray's own head places the agents on.

    submitter ─▶ head: holdfast train --on ray ─▶ one agent on each Ray worker

The head trains nothing. It has the volume with the run directory, so that another attempt of the
RayJob continues the run. KubeRay replaces lost pods, and holdfast starts agents on them.
"""

from __future__ import annotations

import json
import shlex
from typing import Final

from holdfast.clusters.render import agents
from holdfast.clusters.render.components import on_gpus
from holdfast.clusters.render.coordinator import GRACE_S, volume
from holdfast.clusters.render.limits import limits, namespace
from holdfast.clusters.render.network import network
from holdfast.clusters.render.objects import (
    AGENT,
    COORDINATOR,
    Document,
    Tree,
    documents,
    mebibytes,
    with_job,
)
from holdfast.clusters.render.plan import RenderPlan
from holdfast.clusters.render.pods import (
    DISK,
    JOB_FILE,
    container,
    pod,
    run_directory,
    with_gpus,
    worker_container,
)

RAY: Final = "2.60.0"
"""The version that the image must have."""
_OTHER_PODS: Final = 2
"""The head and the submitter."""
_HEAD_BYTES: Final = 4 << 30
_HEAD: Final = {"cpu": "1", "memory": mebibytes(_HEAD_BYTES)}
_SUBMITTER: Final = {"cpu": "500m", "memory": "1024Mi"}
_SUBMITTER_GRACE_S: Final = 30


def rayjob(plan: RenderPlan) -> Tree:
    """The folder to apply in place of an overlay."""
    files = {
        "namespace.yaml": [namespace(plan)],
        "access.yaml": documents(plan, "accounts"),
        "network.yaml": [*network(plan), *documents(plan, "network-ray")],
        "limits.yaml": limits(plan, _OTHER_PODS, _HEAD_BYTES),
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
