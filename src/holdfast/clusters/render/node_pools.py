"""Node pools: the commands of each cloud that make them.

    holdfast-gpu        on demand, for `overlays/gpu`          0 to one more than there are agents
    holdfast-gpu-spot   spot, for the overlay of the cloud     the same

With a lower size of 0, nodes exist only while a run needs them. A node more than there are agents
lets a new agent start while a node that the cloud takes away is still there. The coordinator needs
no GPU: it runs on the nodes that the cluster has anyway.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.clusters.render.components import GPU_TAINT, POOL, SPOT
from holdfast.clusters.render.plan import RenderPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pool:
    """A node pool of a run.

    Attributes:
        largest: The most nodes that it may have; it may have none.
        is_spot: True if the cloud may take its nodes away.
    """

    largest: int
    is_spot: bool

    @property
    def name(self) -> str:
        return "holdfast-gpu-spot" if self.is_spot else "holdfast-gpu"

    @property
    def labels(self) -> str:
        labels = POOL | SPOT if self.is_spot else POOL
        return ",".join(f"{key}={value}" for key, value in labels.items())

    @property
    def taints(self) -> list[tuple[str, str]]:
        gpu = (GPU_TAINT, "present")
        return [gpu, *SPOT.items()] if self.is_spot else [gpu]


def _pools(plan: RenderPlan) -> list[_Pool]:
    return [_Pool(largest=plan.hosts + 1, is_spot=is_spot) for is_spot in (False, True)]


def gke(plan: RenderPlan) -> str:
    """The script for Google Kubernetes Engine."""
    return _script(
        [
            [
                "gcloud container node-pools create",
                pool.name,
                "--cluster=$CLUSTER",
                "--location=$LOCATION",
                "--machine-type=$MACHINE_TYPE",
                f"--accelerator=type=$GPU_TYPE,count={plan.gpus},gpu-driver-version=default",
                "--enable-autoscaling",
                "--num-nodes=0",
                "--total-min-nodes=0",
                f"--total-max-nodes={pool.largest}",
                f"--node-labels={pool.labels}",
                "--node-taints=" + _taints(pool),
                *(["--spot"] if pool.is_spot else []),
            ]
            for pool in _pools(plan)
        ],
        CLUSTER="the name of the cluster",
        LOCATION="its region or zone",
        MACHINE_TYPE="such as g2-standard-12",
        GPU_TYPE="such as nvidia-l4",
    )


def eks(plan: RenderPlan) -> str:
    """The script for Amazon Elastic Kubernetes Service."""
    return _script(
        [
            [
                "aws eks create-nodegroup",
                "--cluster-name=$CLUSTER",
                f"--nodegroup-name={pool.name}",
                "--node-role=$NODE_ROLE_ARN",
                "--subnets=$SUBNET",
                "--instance-types=$INSTANCE_TYPE",
                "--ami-type=AL2023_x86_64_NVIDIA",
                f"--capacity-type={'SPOT' if pool.is_spot else 'ON_DEMAND'}",
                f"--scaling-config=minSize=0,maxSize={pool.largest},desiredSize=0",
                f"--labels={pool.labels}",
                "--taints",
                *(f"key={key},value={value},effect=NO_SCHEDULE" for key, value in pool.taints),
            ]
            for pool in _pools(plan)
        ],
        CLUSTER="the name of the cluster",
        NODE_ROLE_ARN="the role of its nodes",
        SUBNET="one subnet, so that all nodes are in one zone",
        INSTANCE_TYPE="such as g6.4xlarge",
    )


def aks(plan: RenderPlan) -> str:
    """The script for Azure Kubernetes Service, where names have at most 12 letters."""
    return _script(
        [
            [
                "az aks nodepool add",
                "--resource-group=$RESOURCE_GROUP",
                "--cluster-name=$CLUSTER",
                f"--name={'hfgpuspot' if pool.is_spot else 'hfgpu'}",
                "--mode=User",
                "--node-vm-size=$VM_SIZE",
                "--enable-cluster-autoscaler",
                "--node-count=0",
                "--min-count=0",
                f"--max-count={pool.largest}",
                "--labels",
                *pool.labels.split(","),
                "--node-taints=" + _taints(pool),
                *(
                    ["--priority=Spot", "--eviction-policy=Delete", "--spot-max-price=-1"]
                    if pool.is_spot
                    else []
                ),
            ]
            for pool in _pools(plan)
        ],
        RESOURCE_GROUP="of the cluster",
        CLUSTER="the name of the cluster",
        VM_SIZE="such as Standard_NC4as_T4_v3",
    )


def _taints(pool: _Pool) -> str:
    return ",".join(f"{key}={value}:NoSchedule" for key, value in pool.taints)


def _script(commands: Sequence[Sequence[str]], **variables: str) -> str:
    """A script of commands.

    Args:
        commands: The words of each; the first is written as it is, and others may name variables.
        variables: Variables that the environment must contain, with a description of each.
    """
    checks = [f': "${{{name}:?{meaning}}}"' for name, meaning in variables.items()]
    lines = [" \\\n  ".join([first, *map(_word, rest)]) for first, *rest in commands]
    return "\n".join(["#!/bin/sh", "set -eu", *checks, *lines, ""])


def _word(word: str) -> str:
    return f'"{word}"' if "$" in word else shlex.quote(word)
