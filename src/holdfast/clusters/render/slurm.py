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

from holdfast.clusters.render.plan import HostAmounts

WARNING_S: Final = 120
"""How long before its time limit a job is told."""
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


def sbatch(name: str, hosts: int, amounts: HostAmounts, words: Sequence[str]) -> str:
    """The script.

    Args:
        name: The name of the job.
        hosts: Its hosts.
        amounts: Amounts that it asks for on each of them.
        words: The job and its keys, as `holdfast train` is given them.
    """
    directives = [f"#SBATCH --{each}" for each in _directives(name, hosts, amounts)]
    train = shlex.join(["holdfast", "train", *words, f"hosts={hosts}", "--on", "slurm"])
    begin = [
        f'run="$PWD/runs/{name}-$SLURM_JOB_ID"  # the same after a requeue',
        'if [ -e "$run/job.yaml" ]; then set -- --resume; fi',
        f'{train} --run "$run" "$@" &',
    ]
    return "\n".join(["#!/bin/bash", *directives, "", *begin, _END])


def _directives(name: str, hosts: int, amounts: HostAmounts) -> list[str]:
    memory = -(-amounts.memory_bytes // (1 << 20))
    return [
        f"job-name={name}",
        f"nodes={hosts}",
        "ntasks-per-node=1",
        f"cpus-per-task={amounts.cpus}",
        *([f"mem={memory}M"] if memory else []),
        *([f"gpus-per-node={amounts.gpus}"] if amounts.gpus else []),
        "no-kill",
        "requeue",
        f"signal=TERM@{WARNING_S}",
        "open-mode=append",
        f"output={name}-%j.log",
    ]
