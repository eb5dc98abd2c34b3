"""A run that is submitted as a job of a Ray cluster."""

import json
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from conftest import events_of, needs_library, wait_until
from ray_cluster import RayCluster

pytestmark = [
    pytest.mark.slow,
    pytest.mark.soak,
    pytest.mark.timeout(600),
    needs_library("ray", "aiohttp_cors"),
]


def test_a_job_trains_and_saves_its_state_when_it_is_stopped(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "ray.md").read_text()
    submit = re.search(r"^\$ (ray job submit (?:[^\n\\]|\\\n)*)", page, re.MULTILINE)[1]
    run_dir, folder = tmp_path / "run", tmp_path / "here"
    words = shlex.split(submit.replace("\\\n", ""))
    words[words.index("/shared/runs/digits")] = str(run_dir)
    folder.mkdir()
    cluster = RayCluster(tmp_path, nodes=1, jobs=True)
    environment = {**os.environ, **cluster.environment}
    environment["RAY_ADDRESS"] = f"http://{cluster.dashboard}"

    def ray(*words):
        done = subprocess.run(
            words, env=environment, cwd=folder, stdout=subprocess.DEVNULL, timeout=240, check=False
        )
        return done.returncode == 0

    words = [*words[:3], "--submission-id", "job", "--no-wait", *words[3:], "epochs=500"]
    try:
        wait_until(lambda: ray(*words), 120)  # a node does not take jobs at once
        metrics = run_dir / "metrics.jsonl"
        wait_until(lambda: metrics.exists() and len(metrics.read_text().splitlines()) > 30, 240)
        assert ray("ray", "job", "stop", "job")
    finally:
        cluster.close()
    result = json.loads((run_dir / "result.json").read_text())
    assert result["status"] == "stopped"
    stored = events_of(run_dir, "checkpoint-collected")[-1]
    assert stored["step"] == result["steps"]
