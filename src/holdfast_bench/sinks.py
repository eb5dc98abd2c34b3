"""What metrics and trackers cost: throughput with every sink on, relative to every sink off.

    off       no metrics are served, and no tracker is fed
    metrics   --metrics, scraped every second
    all       the same, with TensorBoard, MLflow, Weights & Biases (offline) and OpenTelemetry

MLflow has its own server and OpenTelemetry a receiver that drops what it gets; both run on the same
cores with the lowest priority, as if they were elsewhere. Each round runs every way once, one after
the other; ratios are taken within a round.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import IO, Any, Final

import yaml

from holdfast.errors import HoldfastError
from holdfast.rundir import json_lines
from holdfast.rundir.run_directory import METRICS
from holdfast.sinks.trackers.sender import FOLDER
from holdfast_bench.results.figures import ratio, spread
from holdfast_bench.workloads import WORKLOADS, job_keys

SETTINGS: Final = ("off", "metrics", "all")
WARM_SHARE: Final = 0.5
"""Before they are counted, steps run for this part of the measured time: libraries are imported."""
SETTLE_S: Final = 30.0
"""MLflow starts more processes after its first answer; the first run would pay for them."""
SCRAPE_S: Final = 1.0
START_TIMEOUT_S: Final = 120.0
END_TIMEOUT_S: Final = 60.0
LOWEST: Final = 19
"""The priority of what would run elsewhere."""


def measure(workload: str, workers: int, seconds: float, rounds: int) -> list[dict[str, Any]]:
    """One row per setting."""
    rates: dict[str, list[float]] = {setting: [] for setting in SETTINGS}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as receivers:
        trackers = _trackers(receivers, Path(folder))
        for number in range(rounds):
            order = SETTINGS if number % 2 == 0 else SETTINGS[::-1]
            for setting in order:
                print(f"{workload}, round {number + 1}: {setting}", file=sys.stderr)
                given = trackers if setting == "all" else []
                rate = _rate(workload, workers, seconds, given, is_scraped=setting != "off")
                rates[setting].append(rate)
    return [
        {
            "workload": workload,
            "workers": workers,
            "setting": setting,
            "steps_per_s": spread(measured, 2),
            "of_off": ratio(measured, rates["off"]),
        }
        for setting, measured in rates.items()
    ]


def _rate(
    workload: str, workers: int, seconds: float, trackers: list[Any], *, is_scraped: bool
) -> float:
    """Steps a second of a run of so many seconds."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as open_:
        job, run_dir, port = Path(folder) / "job.yaml", Path(folder) / "run", _free_port()
        keys = {**job_keys(workload, workers, 1_000_000), "trackers": trackers}
        job.write_text(yaml.safe_dump(keys))
        command = [sys.executable, "-m", "holdfast", "train", str(job), "--run", str(run_dir)]
        if is_scraped:
            command += ["--metrics", str(port)]
        environment = {**os.environ, "WANDB_MODE": "offline"}
        errors = open_.enter_context((Path(folder) / "errors.txt").open("w+b"))
        process = open_.enter_context(_process(command, env=environment, errors=errors))
        if is_scraped:
            open_.enter_context(_scraping(port))
        begin = _first_step_at(process, run_dir / METRICS, errors) + WARM_SHARE * seconds
        time.sleep(max(0.0, begin + seconds - time.time()))
        at = [
            float(line["time_unix_s"])
            for line in json_lines.read(run_dir / METRICS)
            if "loss" in line
        ]
        _check_fed(run_dir, trackers)
    counted = [each for each in at if begin <= each <= begin + seconds]
    if len(counted) < 2:
        raise HoldfastError(f"{workload}: fewer than two steps in {seconds:g} s; take longer")
    return (len(counted) - 1) / (counted[-1] - counted[0])


def _check_fed(run_dir: Path, trackers: list[Any]) -> None:
    """Raises: HoldfastError: A tracker has acknowledged nothing, so its cost was not measured."""
    for each in trackers:
        if not (run_dir / FOLDER / f"{each['name']}.json").exists():
            raise HoldfastError(f"{each['name']} has got nothing; take longer, or see its library")


def _first_step_at(process: subprocess.Popen[bytes], path: Path, errors: IO[bytes]) -> float:
    """When a run has committed its first step, Unix time, seconds.

    Raises:
        HoldfastError: It ended before, or takes too long.
    """
    deadline = time.monotonic() + START_TIMEOUT_S
    while not (found := [line for line in json_lines.last(path) if "loss" in line]):
        if process.poll() is not None or time.monotonic() > deadline:
            errors.seek(0)
            said = errors.read().decode(errors="replace").strip() or "no message"
            raise HoldfastError(
                f"holdfast train made no step within {START_TIMEOUT_S:.0f} s, or ended: "
                f"{said.splitlines()[-1]}"
            )
        time.sleep(0.1)
    return float(found[0]["time_unix_s"])


def _trackers(receivers: ExitStack, folder: Path) -> list[dict[str, str]]:
    """Every tracker, with what it sends to."""
    mlflow, otel = _free_port(), _free_port()
    server = ["-m", "mlflow", "server", "--backend-store-uri", f"sqlite:///{folder}/mlflow.db"]
    server += ["--artifacts-destination", f"{folder}/artifacts", "--workers", "1"]
    server += ["--host", "127.0.0.1", "--port", str(mlflow)]
    quiet = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true"}
    receivers.enter_context(_process([sys.executable, *server], env=quiet, is_elsewhere=True))
    receivers.enter_context(_dropping(otel))
    _wait_for(mlflow, "/health")
    time.sleep(SETTLE_S)
    return [
        {"name": "tensorboard"},
        {"name": "mlflow", "uri": f"http://127.0.0.1:{mlflow}"},
        {"name": "wandb"},
        {"name": "otel", "endpoint": f"http://127.0.0.1:{otel}"},
    ]


@contextmanager
def _process(
    command: list[str],
    *,
    env: dict[str, str],
    errors: IO[bytes] | None = None,
    is_elsewhere: bool = False,
) -> Iterator[subprocess.Popen[bytes]]:
    """A process group that is ended with the block."""
    with subprocess.Popen(
        command,
        env=env,
        stdout=subprocess.DEVNULL,
        stderr=errors or subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        if is_elsewhere:
            os.setpriority(os.PRIO_PGRP, process.pid, LOWEST)
        try:
            yield process
        finally:
            for number in (signal.SIGTERM, signal.SIGKILL):
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(END_TIMEOUT_S)


@contextmanager
def _scraping(port: int) -> Iterator[None]:
    """While the block runs, metrics are scraped.

    Raises:
        HoldfastError: The newest scrape has failed, so their cost was not measured.
    """
    ended, statuses = threading.Event(), [0]

    def scrape() -> None:
        while not ended.wait(SCRAPE_S):
            statuses[0] = _get(port, "/metrics")

    thread = threading.Thread(target=scrape, daemon=True)
    thread.start()
    try:
        yield
        if statuses[0] != http.client.OK:
            raise HoldfastError(f"metrics at port {port} answered with status {statuses[0]}")
    finally:
        ended.set()
        thread.join()


@contextmanager
def _dropping(port: int) -> Iterator[None]:
    """While the block runs, a receiver takes what is posted and drops it."""

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(http.client.OK)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", port), Receiver) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()


def _wait_for(port: int, path: str) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while _get(port, path) != http.client.OK:
        if time.monotonic() > deadline:
            raise HoldfastError(f"port {port} does not answer; is MLflow's server installed?")
        time.sleep(0.2)


def _get(port: int, path: str) -> int:
    """The status of an answer; 0 without one."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        response.read()
        return response.status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        connection.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> None:
    """Measure and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workloads", default="small")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    unknown = set(options.workloads.split(",")) - WORKLOADS.keys()
    if unknown:
        parser.error(f"no workload {', '.join(sorted(unknown))}; there are {', '.join(WORKLOADS)}")
    rows = [
        row
        for workload in options.workloads.split(",")
        for row in measure(workload, options.workers, options.seconds, options.rounds)
    ]
    print(json.dumps({"benchmark": "sinks", "rounds": options.rounds, "rows": rows}))


if __name__ == "__main__":
    main()
