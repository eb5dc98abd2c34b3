"""A run as its directory records it: 40 steps of two workers, one of which was killed."""

import json

STARTED = 1000.0
LAST_STEP = 40
NOW = 1026.0
HOST = "reef-1"


def write(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def generation(number, at, step, members=(0, 1)):
    return {
        "time_unix_s": at, "event": "generation-started", "number": number,
        "members": list(members), "step": step, "last_committed_step": step,
        "from_checkpoint": False, "checkpoint": None,
    }  # fmt: skip


def events(workers=2):
    members = range(workers)
    return [
        {"time_unix_s": STARTED, "event": "run-started", "workers": workers, "pid": 1},
        {"time_unix_s": 1002.0, "event": "agent-started", "host": HOST, "pid": 2},
        *({"time_unix_s": 1003.0, "event": "worker-started", "rank": rank, "pid": 3 + rank}
          for rank in members),
        generation(1, 1005.0, 0, members),
        {"time_unix_s": 1010.2, "event": "checkpoint-committed", "step": 10, "directory": "gone"},
        {"time_unix_s": 1011.0, "event": "bottleneck-found", "step": 12,
         "bottleneck": "input-bound", "share": 0.41,
         "text": "waiting for samples takes 41% of a step"},
        {"time_unix_s": 1015.25, "event": "worker-exited", "rank": 1, "status": -9,
         "cause": "was killed by SIGKILL", "error": "", "unexpected": True},
        {"time_unix_s": 1015.4, "event": "worker-started", "rank": 1, "pid": 99},
        generation(2, 1015.5, 20, members),
        {"time_unix_s": 1020.0, "event": "host-joined", "host": "reef-2", "address": "10.0.0.2"},
    ]  # fmt: skip


RECOVERY = {
    "number": 1, "time_unix_s": 1015.75, "outcome": "recovered",
    "causes": [{"who": "rank 1", "rank": 1, "what": "was killed by SIGKILL",
                "injected_fault": "kill", "stack": []}],
    "step": 20, "ended": [], "halted": [0],
    "seconds": {"found": 0.009, "forked": 0.05, "all ready": 0.08, "next step": 0.361},
    "total_s": 0.5, "checkpoint": None, "recomputed_steps": 0, "recomputed_samples": 0,
}  # fmt: skip


def step(number, workers=2):
    phases = {"data": 0.2, "forward": 0.1, "backward": 0.1, "wait": 0.02, "reduce": 0.04,
              "optimizer": 0.01}  # fmt: skip
    columns = {name: [seconds] * workers for name, seconds in phases.items()}
    columns["forward"] = [0.1 + 0.001 * rank for rank in range(workers)]
    return {
        "step": number, "epoch": (number - 1) // 10, "loss": 2 / number, "norm": 1.0, "lr": 0.1,
        "samples": 64, "logged": {}, "seconds": 0.5, "phases": {},
        "workers": {"rank": list(range(workers)), "shards": [4] * workers, **columns},
        "time_unix_s": 1005.0 + number / 2 + (0.25 if number > 20 else 0),
    }  # fmt: skip


def sample(workers=2, gpus=()):
    return {
        "host": HOST, "time_unix_s": 1024.0, "cpu": 0.2, "load": 1.0, "memory_bytes": 4e9,
        "memory_total_bytes": 16e9, "gpus": list(gpus),
        "workers": [{"rank": rank, "cpu": 0.54, "memory_bytes": 3.1e8} for rank in range(workers)],
    }  # fmt: skip


GPU = {"index": 0, "name": "NVIDIA GeForce RTX 3060", "utilization": 0.54, "memory_bytes": 5.9e9,
       "memory_total_bytes": 12e9, "temperature_c": 71, "power_w": 120}  # fmt: skip
JOB = """
data: {name: digits}
model: {name: mlp}
epochs: 6
workers: 2
shards: 8
threads_per_worker: 1
"""

TEXT_JOB = """
task: language
data: {name: synthetic-text, length: 16}
model: {name: gpt}
epochs: 6
workers: 2
shards: 8
threads_per_worker: 1
"""
"""A job whose samples are 16 tokens each."""


def write_run(path, workers=2, gpus=(), more=()):
    """Write a run of `LAST_STEP` steps, with further events."""
    path.mkdir(parents=True)
    (path / "job.yaml").write_text(JOB)
    write(path / "events.jsonl", [*events(workers), *more])
    evaluation = {"step": 30, "evaluation": {"accuracy": 0.646}}
    steps = [step(number, workers) for number in range(1, LAST_STEP + 1)]
    write(path / "metrics.jsonl", [*steps[:30], evaluation, *steps[30:]])
    write(path / "recoveries.jsonl", [RECOVERY])
    write(path / "system.jsonl", [sample(workers, gpus)])
