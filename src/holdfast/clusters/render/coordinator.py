"""The coordinator: a Job of one pod with a volume, a name that stays, and a token for the agents.

It trains nothing, so it needs no GPU and little of its node. The agents send it their checkpoints.

    clear ─▶ token (renews the token until the run ends) ─▶ holdfast coordinator

A Job, as it ends with the run; a StatefulSet would start it again. While the old pod may still
write to the volume there is no new one (`podReplacementPolicy: Failed`).
"""

from __future__ import annotations

import shlex
from typing import Final

from holdfast.clusters.render.objects import COORDINATOR, Document, documents, mebibytes
from holdfast.clusters.render.plan import RenderPlan
from holdfast.clusters.render.pods import (
    API_ACCESS,
    CONTROL_PORT,
    DISK,
    JOB_FILE,
    JOIN_PORT,
    METRICS_PORT,
    METRICS_TOKEN_FILE,
    TOKEN,
    pod,
    run_directory,
    small_container,
    worker_container,
)

OTHER_PODS: Final = 1
"""Besides those that train: this one."""
SIZE_BYTES: Final = 1 << 30
_AMOUNTS: Final = {"cpu": "1", "memory": mebibytes(SIZE_BYTES)}
GRACE_S: Final = 300
"""For the step and the checkpoint with which a run stops."""
_RENEW_S: Final = 1800
"""Tokens are valid for an hour."""
_USES: Final = 1000
"""Agents that may join with a token until the next one."""


def coordinator(plan: RenderPlan) -> list[Document]:
    """All objects of the coordinator."""
    service = documents(plan, "service", join_port=JOIN_PORT, control_port=CONTROL_PORT)
    job = _job(plan)
    job["spec"]["template"]["spec"]["subdomain"] = plan.name
    return [*service, volume(plan), job]


def host_of(plan: RenderPlan) -> str:
    """The name of the coordinator's pod, which its successor has too."""
    return f"{plan.named(COORDINATOR)}-0.{plan.name}"


def volume(plan: RenderPlan) -> Document:
    """The volume of the run's directory, which outlives its pod."""
    return documents(plan, "volume", disk=DISK)[0]


def job_of(plan: RenderPlan) -> Document:
    """The specification of the coordinator's Job."""
    spec: Document = _job(plan)["spec"]
    return spec


def _job(plan: RenderPlan) -> Document:
    job = {"name": "job", "configMap": {"name": plan.named("job")}}
    runs = {"name": "runs", "persistentVolumeClaim": {"claimName": plan.named("runs")}}
    secret = {"secretName": plan.named("metrics"), "defaultMode": 0o440}
    metrics = [{"name": "metrics", "secret": secret}] if plan.has_metrics else []
    template = pod(
        plan,
        COORDINATOR,
        [_main(plan)],
        [job, runs, *documents(plan, "api-access"), *metrics],
        grace_s=GRACE_S,
        initContainers=[_clear(plan), _token(plan)],
    )
    found = documents(plan, "coordinator")[0]
    found["spec"]["template"] = template
    return found


def _main(plan: RenderPlan) -> Document:
    """The coordinator. It continues the run if the volume has it."""
    run = run_directory(plan)
    is_elastic = plan.least_hosts < plan.hosts
    hosts = f"{plan.least_hosts}:{plan.hosts}" if is_elastic else f"{plan.hosts}"
    begin = ["holdfast", "coordinator", JOB_FILE, "--no-workers", "--hosts", hosts]
    begin += ["--run", run]
    metrics = f' --metrics "$POD_IP:{METRICS_PORT}"' if plan.has_metrics else ""
    script = (
        f'set -- {shlex.join(begin)} --address "$POD_IP"{metrics}\n'
        f'if [ -e {run}/job.yaml ]; then set -- "$@" --resume; fi\n'
        'exec "$@"\n'
    )
    variables = [_variable(plan, name) for name in plan.variables]
    variables += [_variable(plan, name, optional=True) for name in plan.credentials]
    probe = {"tcpSocket": {"port": JOIN_PORT}, "periodSeconds": 10}
    main = worker_container(
        plan,
        ["sh", "-c", script],
        {"job": JOB_FILE.rpartition("/")[0]},
        _AMOUNTS,
        ports=_ports(plan),
        startupProbe={**probe, "failureThreshold": 60},
        readinessProbe=probe,
    )
    return main | {"env": [*main["env"], *variables]}


def _variable(plan: RenderPlan, name: str, **more: bool) -> Document:
    key = {"name": plan.named("variables"), "key": name, **more}
    return {"name": name, "valueFrom": {"secretKeyRef": key}}


def _ports(plan: RenderPlan) -> list[Document]:
    ports = [{"containerPort": port, "protocol": "TCP"} for port in (JOIN_PORT, CONTROL_PORT)]
    metrics = {"name": "metrics", "containerPort": METRICS_PORT, "protocol": "TCP"}
    return [*ports, metrics] if plan.has_metrics else ports


def _clear(plan: RenderPlan) -> Document:
    """Removes the keys of an earlier start, so that no token is made of them; the token of those
    who read metrics is that of the Secret.
    """
    kept = f"{run_directory(plan)}/secrets"
    if not plan.has_metrics:
        return small_container(plan, "clear", ["rm", "-rf", kept], {"runs": "/runs"})
    script = (
        "set -e; umask 077\n"
        f"rm -rf {kept}; mkdir -p {kept}\n"
        f"cp {METRICS_TOKEN_FILE} {kept}/metrics.token\n"
    )
    mounts = {"runs": "/runs", "metrics": METRICS_TOKEN_FILE.rpartition("/")[0]}
    return small_container(plan, "clear", ["sh", "-c", script], mounts)


def _token(plan: RenderPlan) -> Document:
    """Makes tokens, and is the only process of the run that can talk to Kubernetes."""
    make = ["holdfast", "token", run_directory(plan), "--uses", str(_USES)]
    into = ["--secret", f"{plan.named('join')}/{TOKEN}"]
    script = (
        'rest() { sleep "$1" & wait $!; }\n'  # as a signal ends `wait` at once
        "trap 'exit 0' TERM\n"
        f"while rest 2; do {shlex.join([*make, *into])} && rest {_RENEW_S}; done\n"
    )
    return small_container(
        plan,
        "token",
        ["sh", "-c", script],
        {"runs": "/runs", "api": API_ACCESS},
        restartPolicy="Always",
    )
