"""The agents: an indexed Job, whose pods join the coordinator.

A pod waits until the Secret has a token, as the kubelet mounts nothing before. A lost pod is
replaced while it is still terminating on a node that is gone; the coordinator has fenced it. So
there is no `podFailurePolicy`, which would forbid that.

An agent that runs is no sign that it is of use: its coordinator may have been replaced by one that
does not know it. The liveness probe compares the coordinator in the newest token with that of the
token with which the agent has joined. Whether its host answers is for the coordinator to find out.
"""

from __future__ import annotations

import shlex
from typing import Final

from holdfast.clusters.render.coordinator import host_of
from holdfast.clusters.render.objects import AGENT, Document, documents
from holdfast.clusters.render.plan import RenderPlan
from holdfast.clusters.render.pods import (
    DISK,
    JOIN_PORT,
    TOKEN,
    TOKEN_FILE,
    pod,
    run_directory,
    worker_container,
)

GRACE_S: Final = 60
_COORDINATOR_OF: Final = f"cut -d. -f4 {TOKEN_FILE}"
"""Prints the digest of the coordinator's certificate that a token names."""
_JOINED: Final = "/tmp/coordinator"  # noqa: S108 - a volume of the pod


def agents(plan: RenderPlan) -> Document:
    """The Job of the agents."""
    return _job(plan, host_of(plan), None)


def job_of(plan: RenderPlan, coordinator: str, amounts: dict[str, str]) -> Document:
    """The specification of the agents' Job.

    Args:
        plan: Plan of the run.
        coordinator: The host name of the coordinator's pod.
        amounts: Requests and limits of an agent's container.
    """
    spec: Document = _job(plan, coordinator, amounts)["spec"]
    return spec


def _job(plan: RenderPlan, coordinator: str, amounts: dict[str, str] | None) -> Document:
    address = f"{coordinator}:{JOIN_PORT}"
    join = ["holdfast", "agent", "--join", address, "--token-file", TOKEN_FILE]
    script = (
        f"{_COORDINATOR_OF} >{_JOINED}\n"
        f'exec {shlex.join([*join, "--run", run_directory(plan)])} --address "$POD_IP"\n'
    )
    is_current = f'test "$({_COORDINATOR_OF})" = "$(cat {_JOINED})"'
    main = worker_container(
        plan,
        ["sh", "-c", script],
        {"join": TOKEN_FILE.rpartition("/")[0]},
        amounts,
        livenessProbe={
            "exec": {"command": ["sh", "-c", is_current]},
            "initialDelaySeconds": 10,
            "periodSeconds": 10,
            "timeoutSeconds": 5,
        },
    )
    token = {
        "secretName": plan.named("join"),
        "defaultMode": 0o440,
        "items": [{"key": TOKEN, "path": TOKEN}],
    }
    volumes: list[Document] = [
        {"name": "runs", "emptyDir": {"sizeLimit": DISK}},
        {"name": "join", "secret": token},
    ]
    job = documents(plan, "agents", agents=plan.hosts)[0]
    job["spec"]["template"] = pod(plan, AGENT, [main], volumes, grace_s=GRACE_S)
    return job
