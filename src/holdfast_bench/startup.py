"""From the command to the first step: holdfast compared with a plain PyTorch process."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import yaml

from holdfast.rundir import json_lines
from holdfast.rundir.run_directory import METRICS
from holdfast_bench.arguments import count, parser_of
from holdfast_bench.results.figures import ratio, spread
from holdfast_bench.workloads import Small

RUN_TIMEOUT_S = 300.0


def plain() -> float:
    """Seconds until a plain process has committed its first step."""
    command = [sys.executable, "-m", "holdfast_bench.peers.peer_script", "--workload", "small"]
    command += ["--batch", str(Small.batch_size), "--steps", "1"]
    command += ["--rank", "0", "--world-size", "1"]
    began = time.monotonic()
    done = subprocess.run(command, check=True, capture_output=True, timeout=RUN_TIMEOUT_S)
    return float(done.stdout) - began


def holdfast(workers: int) -> float:
    """Seconds until `holdfast train` has committed its first step."""
    job = {
        "task": "holdfast_bench.workloads:BenchTask",
        "params": {"workload": "small", "steps": 1},
        "batch": Small.batch_size * workers,
        "workers": workers,
        "shards": workers,
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "small.yaml"
        path.write_text(yaml.safe_dump(job))
        command = [sys.executable, "-m", "holdfast", "train", str(path), "--run", f"{folder}/run"]
        began = time.time()
        subprocess.run(command, check=True, capture_output=True, timeout=RUN_TIMEOUT_S)
        first = next(json_lines.read(Path(folder) / "run" / METRICS))
    return float(first["time_unix_s"]) - began


def main() -> None:
    """Measure and print one JSON object."""
    parser = parser_of(__doc__)
    parser.add_argument("--rounds", type=count, default=7, help="Number of measurements.")
    rounds = parser.parse_args().rounds
    ways: dict[str, Callable[[], float]] = {
        "plain process": plain,
        "holdfast, 1 worker": lambda: holdfast(1),
        "holdfast, 2 workers": lambda: holdfast(2),
    }
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for run in ways.values():  # warm-up: compiles modules and fills the page cache
        run()
    for _ in range(rounds):
        for way, run in ways.items():
            seconds[way].append(run())
    rows = [
        {
            "way": way,
            "seconds": spread(measured, 2),
            "of_plain": ratio(measured, seconds["plain process"]),
        }
        for way, measured in seconds.items()
    ]
    print(json.dumps({"benchmark": "startup", "rounds": rounds, "rows": rows}))


if __name__ == "__main__":
    main()
