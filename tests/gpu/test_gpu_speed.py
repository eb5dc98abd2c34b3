"""Section 7: one worker is nearly as fast as a plain loop."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from checked_device import ON_GPU

from holdfast_bench.gpu.benchmark import BASE, LARGE, OURS, SMALL
from holdfast_bench.results.result import Result

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

AT_LEAST = {1: 0.95, 8: 0.90}
"""Speed of holdfast, of a deterministic plain loop with as many micro-batches, by shards."""
HOST_MS_MOST = 0.5 + 0.15
"""Time of a thread that holdfast may add to a step of one shard."""


@pytest.fixture
def measured(tmp_path):
    """Rows of `bench gpu`, which is stored in the folder that `tests/gpu/run` names."""
    folder = Path(os.environ.get("HOLDFAST_CHECKED_OUTPUT") or tmp_path)
    few = [] if ON_GPU else ["--device", "cpu", "--loads", "gpt2-tiny", "--steps", "2"]
    few += ["--rounds", "1"]
    command = [sys.executable, "-m", "holdfast", "bench", "gpu", "--output", str(folder), *few]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    result = Result.load(folder / "gpu.json")
    rows = {(row["load"], row["shards"], row["way"]): row for row in result.rows}
    return rows, result.absent


def test_a_worker_is_nearly_as_fast_as_a_plain_loop(measured, record_property):
    rows, absent = measured
    ours = [row for row in rows.values() if row["way"] == OURS]
    for row in ours:
        record_property(f"{row['load']}, {row['shards']} shards", row["of_plain"])
    if not ON_GPU:
        assert list(absent) == ["a GPU"]
        assert [row["shards"] for row in ours] == [1, 8]
        assert all(row["of_plain"] > 0 for row in ours)
        return
    assert not absent
    slow = [row for row in ours if row["of_plain"] < AT_LEAST[row["shards"]]]
    assert [row for row in slow if row["load"] in LARGE] == []
    added = {
        load: rows[load, 1, OURS]["host_ms"]["median"] - rows[load, 1, BASE]["host_ms"]["median"]
        for load in SMALL
    }
    assert max(added.values()) <= HOST_MS_MOST, added
