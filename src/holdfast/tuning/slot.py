"""Slot: a process that runs the trials of a search, one after the other, on one fork server.

Start it with `python -m holdfast.tuning.slot --parent PID`.

Its orders are lines of JSON on standard input: `trial`, `job`, `run_dir` and `resume` begin a
trial, and `stop` ends the one with this number after its step, with a checkpoint. An answer is a
line on standard output: `trial` and its result, or `error` and `message`. What a run prints goes to
standard error. The slot and all that it has started die with the search.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any

from holdfast.api.attended import Attendance
from holdfast.api.train import run_job
from holdfast.errors import HoldfastError
from holdfast.job import load
from holdfast.launch.fork_client import ForkServer
from holdfast.linux.lifeline import die_with_parent, handling
from holdfast.runs.controls import Controls
from holdfast.runs.run import LaunchOptions
from holdfast.runs.run_fork_server import fork_server

Order = tuple[dict[str, Any], Controls]


def main() -> None:
    """Run trials until standard input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--parent", type=int, required=True)
    parent = parser.parse_args().parent
    die_with_parent(parent)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    orders: SimpleQueue[Order | None] = SimpleQueue()
    Thread(target=_read, args=(orders,), daemon=True).start()
    with ExitStack() as owned:
        # Ctrl-C is for the search; SIGTERM stops a trial, and nothing where there is none.
        owned.enter_context(handling([signal.SIGINT, signal.SIGHUP], signal.SIG_IGN))
        owned.enter_context(handling([signal.SIGTERM], lambda *_: None))
        forks: ForkServer | None = None
        while (order := orders.get()) is not None:
            request, controls = order
            try:
                job = load.check(request["job"], where=f"trial {request['trial']}")
                forks = forks or owned.enter_context(fork_server(job))
                answer = _run(request, LaunchOptions(forks=forks, controls=controls))
            except HoldfastError as error:
                answer = {"error": type(error).__name__, "message": str(error)}
            print(json.dumps({"trial": request["trial"], **answer}), file=answers, flush=True)


def _run(request: dict[str, Any], options: LaunchOptions) -> dict[str, Any]:
    job = load.request(request["job"], where=f"trial {request['trial']}")
    result = run_job(
        job,
        options,
        run_dir=Path(request["run_dir"]),
        resume=request["resume"],
        attendance=Attendance(is_listed=False),
        queue=job.resources.is_given,
    )
    return result.as_dict()


def _read(orders: SimpleQueue[Order | None]) -> None:
    """Pass orders on; a stop reaches the current run."""
    current: tuple[int, Controls] | None = None
    for line in sys.stdin:
        request = json.loads(line)
        if "stop" not in request:
            current = request["trial"], Controls()
            orders.put((request, current[1]))
        elif current is not None and current[0] == request["stop"]:
            current[1].request_stop()
    orders.put(None)


if __name__ == "__main__":
    main()
