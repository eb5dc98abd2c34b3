"""Bits that flip in one replica at random moments: `python tests/runs/corruption.py --runs 100`.

Each run has two or three workers and checkpoints every 25 steps or none before its end. The flip
must be found within 300 steps and before a checkpoint, and the run must end with the weights of
one without it. Prints a line for each run; the status is 1 if one fails.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

import state_tasks

from holdfast.api.train import run_job
from holdfast.job import load
from holdfast.launch.fork_client import ForkServer
from holdfast.launch.spawn import WORKER, spawn
from holdfast.runs.run import LaunchOptions

STEPS = 480


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, ForkServer(spawn(WORKER)) as forks:
        whole = train(Path(folder) / "whole", forks, workers=1, params={}).weights_sha256
        failed = 0
        for seed in range(options.first, options.first + options.runs):
            problem, told = try_one(Path(folder) / str(seed), forks, seed, whole)
            failed += bool(problem)
            print(f"seed {seed}: {problem or 'ok'}, {told}", flush=True)
    print(f"{options.runs - failed} of {options.runs} passed")
    return int(failed > 0)


def try_one(folder, forks, seed, whole):
    folder.mkdir()
    mark, workers = folder / "mark", 2 + seed % 2
    params = {"seed": seed, "mark": str(mark), "rank": seed // 2 % workers, "within_s": 0.5}
    every = 25 if seed // 4 % 2 else 0
    found = train(folder / "run", forks, workers=workers, every=every, params=params)
    name, _, step = mark.read_text().partition(" ")
    events = [json.loads(line) for line in (folder / "run/events.jsonl").read_text().splitlines()]
    lost = [e for e in events if e["event"] == "worker-exited" and e["unexpected"]]
    back = [e for e in events if e["event"] == "generation-started"][1:]
    told = f"{workers} workers, {name} after step {step}"
    if found.weights_sha256 != whole:
        return "other weights", told
    if not lost:
        return "", f"{told}, overwritten before it was read"
    told += f", found after step {back[0]['last_committed_step']}"
    if back[0]["last_committed_step"] - int(step) > 300:
        return "found too late", told
    return "" if "has a tensor" in lost[0]["cause"] else f"rank {lost[0]['rank']}: {lost[0]}", told


def train(run_dir, forks, *, workers, params, every=0):
    keys = {
        "task": f"{state_tasks.__file__}:flipping",
        "workers": workers,
        "batch": 30,
        "shards": 4,
        "checkpoint": {"every_steps": every},
        "params": {"epochs": STEPS // 4, **params},
    }
    job = load.check(keys, where="corruption")
    return run_job(job, LaunchOptions(forks=forks), run_dir=run_dir, resume=False)


if __name__ == "__main__":
    sys.exit(main())
