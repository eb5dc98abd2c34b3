"""The task `classification` logs the accuracy of each step: the same one for any workers."""

import pytest

from conftest import SMALL, events_of, killing, metrics_of

pytestmark = pytest.mark.slow


def test_each_step_has_its_accuracy_whatever_the_workers_and_their_failures(train, tmp_path):
    job = {**SMALL, "epochs": 4, "clip_norm": None}
    alone = train(run_dir=tmp_path / "alone", workers=1, **job)
    checked = train(run_dir=tmp_path / "two", workers=2, verify={"recompute": 0.5}, **job)
    killed = train(
        run_dir=tmp_path / "killed", watch=killing(tmp_path / "killed", 6, 1), workers=2, **job
    )
    failures = [e for e in events_of(tmp_path / "killed", "worker-exited") if e["unexpected"]]
    assert [each["rank"] for each in failures] == [1]
    assert alone["weights_sha256"] == checked["weights_sha256"] == killed["weights_sha256"]
    values = [
        {
            line["step"]: line["logged"]["accuracy"]
            for line in metrics_of(tmp_path / name)
            if "logged" in line
        }
        for name in ("alone", "two", "killed")
    ]
    assert values[0] == values[1] == values[2]
    accuracies = list(values[0].values())
    assert len(accuracies) == alone["steps"]
    assert all(0 <= each <= 1 for each in accuracies)
    assert min(accuracies[-4:]) > 0.3, "ten classes: by chance it is 0.1"
