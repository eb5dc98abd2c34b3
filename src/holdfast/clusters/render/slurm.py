"""The sbatch script of a job, which `--on slurm` runs on the nodes that Slurm gives.

    begins ─▶ the run ends: exit with its status
      ▲ └──▶ preemption or time limit: the agents get SIGTERM, the run stops with a checkpoint ─┐
      └──────────────────────────────────── scontrol requeue ◀───────────────────────────────────┘

    scancel --batch --signal=INT JOB    stops the run with a checkpoint, for good

Without `--no-kill` Slurm would end the whole job with one of its nodes. A requeued job keeps its
id, and so finds its run directory: below the folder in which `sbatch` is called, which all nodes
share.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Final

from holdfast.clusters.render.plan import HostAmounts, amounts_on_host
from holdfast.job.train_job import TrainJob

WARNING_S: Final = 120
"""Time before its limit at which a job is told."""
STOPPED: Final = 130
"""The exit status of a run that was stopped."""

_END: Final = f"""\
holdfast=$! stopped='' interrupted=yes
trap 'stopped=yes interrupted=yes; kill -INT "$holdfast"' INT
while [ -n "$interrupted" ]; do  # a signal ends wait, but not the run
  interrupted=''
  wait "$holdfast"
  status=$?
done
if [ "$status" -eq {STOPPED} ] && [ -z "$stopped" ]; then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
"""


def sbatch(job: TrainJob, words: Sequence[str]) -> str:
    """The script.

    Args:
        job: The job.
        words: The job and its keys, as `holdfast train` is given them.
    """
    directives = [f"#SBATCH --{each}" for each in _directives(job, amounts_on_host(job))]
    hosts = [f"hosts={job.hosts}"]
    if job.most_hosts > job.hosts:
        hosts.append(f"max_hosts={job.most_hosts}")
    train = shlex.join(["holdfast", "train", *words, *hosts, "--on", "slurm"])
    begin = [
        f'run="$PWD/runs/{job.name}-$SLURM_JOB_ID"  # the same after a requeue',
        'if [ -e "$run/job.yaml" ]; then set -- --resume; fi',
        f'{train} --run "$run" "$@" &',
    ]
    return "\n".join(["#!/bin/bash", *directives, "", *begin, _END])


def _directives(job: TrainJob, amounts: HostAmounts) -> list[str]:
    is_elastic = job.most_hosts > job.hosts
    nodes = f"{job.hosts}-{job.most_hosts}" if is_elastic else f"{job.hosts}"
    memory = -(-amounts.memory_bytes // (1 << 20))
    return [
        f"job-name={job.name}",
        f"nodes={nodes}",
        "ntasks-per-node=1",
        f"cpus-per-task={amounts.cpus}",
        *([f"mem={memory}M"] if memory else []),
        *([f"gpus-per-node={amounts.gpus}"] if amounts.gpus else []),
        "no-kill",
        "requeue",
        f"signal=TERM@{WARNING_S}",
        "open-mode=append",
        f"output={job.name}-%j.log",
    ]
