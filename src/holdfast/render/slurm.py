"""The sbatch script of a job: the coordinator on the first node, an agent on each of the others.

    begins ─▶ the run ends: exit with its status
      ▲ └──▶ SIGTERM (preemption), SIGUSR1 (time limit): stop with a checkpoint ─┐
      └──────────────────────── scontrol requeue ◀────────────────────────────────┘

    scancel --batch --signal=INT JOB    stops the run with a checkpoint, for good

Without `--no-kill` Slurm would end the whole job with one of its nodes. A lost node is not replaced
within the allocation; if it is the first, Slurm requeues the job by itself. The folder in which
`sbatch` is called must be one that all nodes share: it has the run directories.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Final

from holdfast.job.train_job import TrainJob

WARNING_S: Final = 120
"""How long before its time limit a job is told."""
STOPPED: Final = 130
"""The exit status of a run that a signal has stopped."""


def sbatch(job: TrainJob, words: Sequence[str]) -> str:
    """The script.

    Args:
        job: The job.
        words: The job and its keys, as `holdfast coordinator` is given them.
    """
    directives = "\n".join(f"#SBATCH --{each}" for each in _directives(job))
    parts = [_setup(job), _coordinator(job, words), _agents(job), _END]
    return "\n".join(["#!/bin/bash", directives, "", *parts])


def _workers_per_host(job: TrainJob) -> int:
    return -(-job.workers // job.hosts)


def _cpus(job: TrainJob) -> int:
    return _workers_per_host(job) * max(job.resources.cpus, job.threads_per_worker)


def _directives(job: TrainJob) -> list[str]:
    workers, each = _workers_per_host(job), job.resources
    memory = -(-workers * each.memory_bytes // (1 << 20))
    return [
        f"job-name={job.name}",
        f"nodes={job.hosts}",
        "ntasks-per-node=1",
        f"cpus-per-task={_cpus(job)}",
        *([f"mem={memory}M"] if memory else []),
        *([f"gpus-per-task={workers * each.gpus}"] if each.gpus else []),
        "no-kill",
        "requeue",
        f"signal=B:USR1@{WARNING_S}",
        "open-mode=append",
        f"output={job.name}-%j.log",
    ]


def _step(job: TrainJob, first: int, nodes: int, *options: str) -> str:
    """The beginning of a step: one task on each of some nodes.

    Args:
        job: The job.
        first: The first of the nodes, counted from 0.
        nodes: How many.
        options: Further ones.
    """
    gpus = _workers_per_host(job) * job.resources.gpus
    words = [
        "srun",
        f"--relative={first}",
        f"--nodes={nodes}",
        f"--ntasks={nodes}",
        f"--cpus-per-task={_cpus(job)}",  # not inherited since Slurm 22.05
        *([f"--gpus-per-task={gpus}"] if gpus else []),
        "--no-kill",
        "--kill-on-bad-exit=0",
        "--wait=0",
        *options,
    ]
    return shlex.join(words)


def _setup(job: TrainJob) -> str:
    return f"""\
set -u
run="$PWD/runs/{job.name}-$SLURM_JOB_ID"  # the same after a requeue
port=$((20000 + SLURM_JOB_ID % 10000 * 2))
resume=()
if [ "${{SLURM_RESTART_COUNT:-0}}" -gt 0 ] && [ -e "$run/job.yaml" ]; then resume=(--resume); fi
rm -rf "$run/secrets"  # of an earlier start

stopping='' interrupted=''
stop() {{ interrupted=yes; scancel --signal=TERM "$SLURM_JOB_ID.0"; }}  # the coordinator's step
trap 'stopping=for-now; stop' TERM USR1
trap 'stopping=for-good; stop' INT
"""


def _coordinator(job: TrainJob, words: Sequence[str]) -> str:
    command = shlex.join(["holdfast", "coordinator", *words, "--hosts", str(job.hosts)])
    return f"""\
{_step(job, 0, 1)} \\
  {command} --run "$run" --port "$port" "${{resume[@]}}" &
coordinator=$!
for _ in {{1..600}}; do
  if [ -e "$run/secrets/join.token" ] || ! kill -0 "$coordinator" 2>/dev/null; then break; fi
  sleep 0.2
done
"""


def _agents(job: TrainJob) -> str:
    """Each agent gets the token by its standard input, and a run directory of its own."""
    return f"""\
if [ -e "$run/secrets/join.token" ]; then
  join=$(cat "$run/secrets/address") run="$run" \\
    {_step(job, 1, job.hosts - 1, "--input=all")} \\
    bash -c 'exec holdfast agent --join "$join" --token-file /dev/stdin \\
      --run "$run-agent-$SLURM_PROCID"' <"$run/secrets/join.token" &
fi
agents=$!
"""


_END: Final = f"""\
interrupted=yes
while [ -n "$interrupted" ]; do  # a signal ends wait, but not the coordinator
  interrupted=''
  wait "$coordinator"
  status=$?
done
if [ "$status" -eq {STOPPED} ] && [ "$stopping" != for-good ]; then
  scontrol requeue "$SLURM_JOB_ID"
  exit
fi
for _ in {{1..60}}; do
  kill -0 "$agents" 2>/dev/null || break  # they find out that the run is over
  sleep 0.5
done
exit "$status"
"""
