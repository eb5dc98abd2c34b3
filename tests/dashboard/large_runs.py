"""Records of large runs, as a run writes them: any number of steps and workers."""

import json
import random
from functools import partial

BEGAN = 1_000_000.0
STEP_S = 0.5
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


def write_steps(path, steps, workers, began):
    """Write `metrics.jsonl` with an evaluation every 1 % of the run."""
    of_workers = [json.dumps(worker_times(workers, seed)) for seed in range(8)]
    every = max(1, steps // 100)
    with path.open("w") as file:
        for step in range(1, steps + 1):
            loss, at = 0.5 + 4 / (1 + step / steps * 20), began + 10 + step * STEP_S
            file.write(
                f'{{"step": {step}, "epoch": {step // every}, "loss": {loss:.6f}, "norm": 1.25, '
                f'"lr": 0.001, "samples": 1024, "logged": {{}}, "seconds": {STEP_S}, "phases": {{}}'
                f', "workers": {of_workers[step % 8]}, "time_unix_s": {at:.6f}}}\n'
            )
            if step % every == 0:
                results = {"accuracy": round(step / (step + steps / 3), 4)}
                file.write(json.dumps({"step": step, "evaluation": results}) + "\n")


def _host(rank, per_host):
    return f"reef-{rank // per_host:03}-0123abcd"


def write_run(path, *, steps, workers, failures=40, until=None):
    """Write the record of a run on hosts with a GPU for each of up to eight workers.

    Args:
        path: Its directory, which is made.
        steps: How many, half a second each.
        workers: How many.
        failures: Of workers that were killed and replaced.
        until: When the newest step was, Unix time, seconds; by default that of a run that began at
            `BEGAN`.
    """
    path.mkdir(parents=True)
    began = BEGAN if until is None else until - 10 - steps * STEP_S
    step_s, per_host = STEP_S, 4 if workers <= 100 else 8
    end = began + 10 + steps * step_s
    host_of = partial(_host, per_host=per_host)
    ranks = list(range(workers))
    events = [{"time_unix_s": began, "event": "run-started", "workers": workers, "pid": 1}]
    for rank in ranks:
        named = {"rank": rank, "pid": rank, "host": host_of(rank)}
        events.append({"time_unix_s": began + 1, "event": "worker-started", **named})
    generation = {"members": ranks, "last_committed_step": 0, "from_checkpoint": False}
    events.append(
        {"time_unix_s": began + 9, "event": "generation-started", "number": 1, "step": 0}
        | generation
    )
    recoveries = []
    for number in range(1, failures + 1):
        rank, step = number * 7 % workers, steps * number // (failures + 1)
        at = began + 10.1 + step * step_s
        named = {"rank": rank, "pid": rank}
        cause = {"cause": "was killed by SIGKILL", "error": "", "status": -9, "unexpected": True}
        events.append({"time_unix_s": at, "event": "worker-exited", **named, **cause})
        events.append(
            {"time_unix_s": at + 0.1, "event": "worker-started", **named, "host": host_of(rank)}
        )
        resumed = {"number": number + 1, "step": step}
        events.append(
            {"time_unix_s": at + 0.2, "event": "generation-started"} | resumed | generation
        )
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
    write_steps(path / "metrics.jsonl", steps, workers, began)
    write(path / "system.jsonl", system_lines(workers, per_host, end))


def system_lines(workers, per_host, end):
    """The samples of the last minute or more."""
    chance, hosts = random.Random(1), -(-workers // per_host)
    for number in range(min(1000, 8000 // hosts), 0, -1):
        for host in range(hosts):
            ranks = range(per_host * host, min(workers, per_host * (host + 1)))
            gpus = [
                {
                    "index": rank % per_host, "name": "RTX 3060",
                    "utilization": chance.uniform(0.5, 0.9),
                    "memory_bytes": 5.9e9, "memory_total_bytes": 12e9, "temperature_c": 71,
                    "power_w": 120,
                }
                for rank in ranks
            ]  # fmt: skip
            yield {
                "host": _host(per_host * host, per_host),
                "time_unix_s": end - 2 * number, "cpu": 0.3, "load": 3,
                "memory_bytes": 8_000_000_000, "memory_total_bytes": 64_000_000_000, "gpus": gpus,
                "workers": [{"rank": rank, "cpu": 1.0, "memory_bytes": 1e9} for rank in ranks],
            }  # fmt: skip
