"""The dashboard of large runs: a million steps, and a thousand workers."""

import json
import random

import pytest

pytest.importorskip("plotly")


STARTED = 1_000_000.0
PHASES = ("data", "forward", "backward", "collect", "wait", "reduce", "optimizer")


def write(path, lines):
    with path.open("w") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


def worker_times(workers, seed=0):
    """What `workers` workers have measured in a step of half a second."""
    chance = random.Random(seed)
    times = {
        name: [round(0.5 / len(PHASES) * chance.uniform(0.8, 1.2), 5) for _ in range(workers)]
        for name in PHASES
    }
    shards = [8 + chance.randrange(3) for _ in range(workers)]
    return {"rank": list(range(workers)), "shards": shards, **times}


def write_steps(path, steps, workers, step_s):
    """Write `metrics.jsonl` with an evaluation every 1 % of the run."""
    of_workers = [json.dumps(worker_times(workers, seed)) for seed in range(8)]
    every = max(1, steps // 100)
    with path.open("w") as file:
        for step in range(1, steps + 1):
            loss, at = 0.5 + 4 / (1 + step / steps * 20), STARTED + 10 + step * step_s
            file.write(
                f'{{"step": {step}, "epoch": {step // every}, "loss": {loss:.6f}, "norm": 1.25, '
                f'"lr": 0.001, "samples": 1024, "logged": {{}}, "seconds": {step_s}, "phases": {{}}'
                f', "workers": {of_workers[step % 8]}, "time_unix_s": {at:.6f}}}\n'
            )
            if step % every == 0:
                results = {"accuracy": round(step / (step + steps / 3), 4)}
                file.write(json.dumps({"step": step, "evaluation": results}) + "\n")


def host_of(rank):
    return f"reef-{rank // 8:03}-0123abcd"


def write_run(path, *, steps, workers, failures=40):
    """Write the record of a run with eight workers on each host, each with a GPU."""
    path.mkdir(parents=True)
    step_s, hosts = 0.5, -(-workers // 8)
    end = STARTED + 10 + steps * step_s
    ranks = list(range(workers))
    events = [{"time_unix_s": STARTED, "event": "run-started", "workers": workers, "pid": 1}]
    for rank in ranks:
        named = {"rank": rank, "pid": rank, "host": host_of(rank)}
        events.append({"time_unix_s": STARTED + 1, "event": "worker-started", **named})
    generation = {"members": ranks, "last_committed_step": 0, "from_checkpoint": False}
    events.append(
        {"time_unix_s": STARTED + 9, "event": "generation-started", "number": 1, "step": 0}
        | generation
    )
    recoveries = []
    for number in range(1, failures + 1):
        rank, step = number * 7 % workers, steps * number // (failures + 1)
        at = STARTED + 10.1 + step * step_s
        named = {"rank": rank, "pid": rank}
        cause = {"cause": "was killed by SIGKILL", "error": "", "status": -9, "unexpected": True}
        events.append({"time_unix_s": at, "event": "worker-exited", **named, **cause})
        events.append(
            {"time_unix_s": at + 0.1, "event": "worker-started", **named, "host": host_of(rank)}
        )
        began = {"number": number + 1, "step": step}
        events.append({"time_unix_s": at + 0.2, "event": "generation-started"} | began | generation)
        who = {"who": f"rank {rank}", "rank": rank, "what": "was killed by SIGKILL"}
        recoveries.append(
            {
                "number": number, "time_unix_s": at + 0.39, "outcome": "recovered",
                "causes": [who], "step": step, "ended": [], "halted": ranks[:rank],
                "seconds": {"forked": 0.1, "all ready": 0.1, "next step": 0.19}, "total_s": 0.39,
                "checkpoint": None, "recomputed_steps": 0, "recomputed_samples": 0,
            }
        )  # fmt: skip
    write(path / "events.jsonl", events)
    write(path / "recoveries.jsonl", recoveries)
    write_steps(path / "metrics.jsonl", steps, workers, step_s)
    write(path / "system.jsonl", system_lines(workers, hosts, end))


def system_lines(workers, hosts, end):
    """The samples of the last minute or more."""
    chance = random.Random(1)
    for number in range(min(1000, 8000 // hosts), 0, -1):
        for host in range(hosts):
            ranks = range(8 * host, min(workers, 8 * host + 8))
            gpus = [
                {
                    "index": rank % 8, "name": "RTX 3060", "utilization": chance.uniform(0.5, 0.9),
                    "memory_bytes": 5.9e9, "memory_total_bytes": 12e9, "temperature_c": 71,
                    "power_w": 120,
                }
                for rank in ranks
            ]  # fmt: skip
            yield {
                "host": host_of(8 * host), "time_unix_s": end - 2 * number, "cpu": 0.3, "load": 3,
                "memory_bytes": 8_000_000_000, "memory_total_bytes": 64_000_000_000, "gpus": gpus,
                "workers": [{"rank": rank, "cpu": 1.0, "memory_bytes": 1e9} for rank in ranks],
            }  # fmt: skip
