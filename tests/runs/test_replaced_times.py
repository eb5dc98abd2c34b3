"""The times of a replaced worker begin with the step that it takes part in first."""

import pytest

from conftest import SMALL, events_of, killing, metrics_of, sampled

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("rank", sampled([0, 1], 0))
def test_no_worker_has_spent_more_in_a_step_than_the_step_took(train, tmp_path, rank):
    path = tmp_path / "run"
    train(run_dir=path, watch=killing(path, 40, rank), workers=2, **{**SMALL, "epochs": 10})
    failures = [e for e in events_of(path, "worker-exited") if e["unexpected"]]
    assert [each["rank"] for each in failures] == [rank]
    steps = [line for line in metrics_of(path) if "workers" in line]
    for before, _, line in zip(steps, steps[1:], steps[2:], strict=False):
        # Times are shared before the sum of a step, so they are of this step and the one before.
        seconds, workers = line["time_unix_s"] - before["time_unix_s"], line["workers"]
        phases = [each for name, each in workers.items() if name not in {"rank", "shards", "link"}]
        for spent in map(sum, zip(*phases, strict=True)):
            assert spent <= seconds + 0.002, line
        assert sum(line["phases"].values()) <= seconds + 0.002, line
