"""Recoveries of a job of your own, on machines of your own: from a fault to the next step of all.

    worker   one worker exits at the start of a step, in the middle of the run
    agent    the engine ends an agent, and its workers with it

Both are of the last host. Each round runs the job to its end, without a fault and with each. Times
are those between two commits, so hosts need no common clock; if steps were lost, those from the
report of the fault.
"""

from __future__ import annotations

import math
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from holdfast.errors import JobError
from holdfast.job.train_job import TrainRequest
from holdfast.tasks import code
from holdfast_bench.own_job import OwnJob
from holdfast_bench.results.figures import spread
from holdfast_bench.rounds import in_rounds
from holdfast_bench.trial import LiveRun, RunRecords, completed


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnRecovery:
    """One recovery.

    Attributes:
        committed_s: From the last commit before the fault to the next one; see above.
        step_s: Median time of a step, one of which is part of that.
        lost: Steps that were computed again.
        is_same: True if the weights are those of the run without a fault.
    """

    committed_s: float
    step_s: float
    lost: int
    is_same: bool


def rows(job: OwnJob, hosts: Sequence[int], rounds: int) -> list[dict[str, Any]]:
    """Measure the recoveries on so many hosts; one row for each number of them and each fault.

    Raises:
        JobError: A run fails, takes too long, or ends before the fault.
    """
    requests = {number: job.on_hosts(number) for number in hosts}
    ways = {str(number): partial(_recoveries, job, each) for number, each in requests.items()}
    runs = in_rounds(ways, rounds, f"{' '.join(job.words)}, hosts")
    return [
        {**job.labels, "hosts": int(number), "fault": fault, **_columns([r[fault] for r in found])}
        for number, found in runs.items()
        for fault in found[0]
    ]


def _columns(found: Sequence[OwnRecovery]) -> dict[str, Any]:
    return {
        "committed_s": spread([each.committed_s for each in found], 3),
        "step_s": spread([each.step_s for each in found], 3),
        "steps_lost": max(each.lost for each in found),
        "same_weights": all(each.is_same for each in found),
    }


def _recoveries(job: OwnJob, request: TrainRequest) -> dict[str, OwnRecovery]:
    """The recovery from each fault; only another host can take over from an agent."""
    rank = request.resolved().workers - 1
    to_end = partial(LiveRun.reaches, steps=math.inf, timeout_s=job.timeout_s)

    def end_agent(run: LiveRun) -> bool:
        assert run.placement.engine is not None
        if run.reaches(middle, job.timeout_s):
            started = run.records.events("worker-started")
            host = next(each["host"] for each in started if each["rank"] == rank)
            run.placement.engine.stop(host.rpartition("-")[0])  # without what makes it unique
        return to_end(run)

    with tempfile.TemporaryDirectory() as folder:
        exits = partial(_with_exit, request, Path(folder), rank)
        with completed(exits(0), job.on, to_end) as records:
            weights = records.result()["weights_sha256"]
            middle = len(records.steps()) // 2
        if not middle:
            raise JobError("the job has no step in its middle; give it more epochs or steps")
        with completed(exits(middle), job.on, to_end) as records:
            found = {"worker": _recovery(records, weights)}
        if request.hosts > 1:
            with completed(exits(0), job.on, end_agent) as records:
                found["agent"] = _recovery(records, weights)
    return found


def _with_exit(job: TrainRequest, folder: Path, rank: int, step: int) -> TrainRequest:
    """A job with a worker that exits, by code in a folder that reaches all hosts: `own_fault`."""
    code.unpack(code.pack(job.task, None), folder)
    file = folder / code.FOLDER / "with_exit.py"
    file.parent.mkdir(exist_ok=True)
    call = f"\ntrain = faulty({job.task!r}, {rank}, {step})\n"
    source = Path(__file__).with_name("own_fault.py").read_text(encoding="utf-8")
    file.write_text(source + call, encoding="utf-8")
    return job.model_copy(update={"task": f"{file}:train"})


def _recovery(records: RunRecords, weights: str) -> OwnRecovery:
    """The first recovery of a run, whose weights are compared.

    Raises:
        JobError: It has none.
    """
    started = records.events("generation-started")
    after_steps = [each for each in started if each["last_committed_step"]]
    if not after_steps:
        raise JobError("the job ended before the fault; give it more epochs or steps")
    resumed = min(after_steps, key=lambda each: int(each["number"]))
    lost = resumed["last_committed_step"] - resumed["step"]
    lines = records.steps()
    committed_at: dict[int, float] = {line["step"]: line["time_unix_s"] for line in lines}
    if lost:  # the lines of these steps are gone
        began = records.events("worker-exited", "agent-ended")[0]["time_unix_s"]
    else:
        began = committed_at[resumed["step"]]
    return OwnRecovery(
        committed_s=committed_at[resumed["step"] + 1] - began,
        step_s=statistics.median(line["seconds"] for line in lines if line["seconds"]),
        lost=lost,
        is_same=records.result()["weights_sha256"] == weights,
    )
