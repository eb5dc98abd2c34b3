"""Job server: runs many jobs, one after the other, on one fork server.

Start it with `python -m holdfast.runs.job_server`.

It serves a program that wants results and shows no progress, such as the exactness fuzzer. A
request is a line of JSON on standard input, with the keys `job`, `run_dir` and `resume`. Its answer
is a line on standard output: what the run reported, or `error` and `message`. A run is stopped as
any other: by SIGTERM to the process that its event `run-started` names, which is this one.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from holdfast.errors import HoldfastError
from holdfast.job import load
from holdfast.launch.fork_client import ForkServer
from holdfast.launch.spawn import WORKER, spawn
from holdfast.linux.lifeline import die_with_parent
from holdfast.rundir.run_directory import RunDirectory
from holdfast.runs.run import LaunchOptions, run


def main() -> None:
    """Answer requests until standard input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--import", dest="imports", action="append", default=[])
    options = parser.parse_args()
    die_with_parent(options.parent)
    with ForkServer(spawn(WORKER), options.imports) as forks:
        for line in sys.stdin:
            print(json.dumps(_answer(json.loads(line), forks)), flush=True)


def _answer(request: dict[str, Any], forks: ForkServer) -> dict[str, Any]:
    try:
        job = load.check(request["job"], where="job server")
        path = Path(request["run_dir"])
        with RunDirectory(path, job, resume=request["resume"]) as directory:
            return run(directory, LaunchOptions(forks=forks))
    except HoldfastError as error:
        return {"error": type(error).__name__, "message": str(error)}


if __name__ == "__main__":
    main()
