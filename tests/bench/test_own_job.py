"""A job of one's own is measured by runs of it; on hosts, see `engines/test_ssh.py`."""

from functools import partial

import pytest

from holdfast.errors import JobError
from holdfast_bench import own_job, own_recovery
from holdfast_bench.own_job import OwnJob, balance

pytestmark = [pytest.mark.slow, pytest.mark.exec]

JOB = ["digits", "model={name: mlp}", "workers=2", "shards=4"]
OWN_TASK = """
import torch
from sizes import SIZE

def train(session):
    model, _ = session.attach(lambda: torch.nn.Linear(SIZE, 1), torch.optim.SGD)
    data = torch.utils.data.TensorDataset(torch.randn(64, SIZE), torch.randn(64, 1))
    for shard in session.shards(data, epochs=4):
        session.backward(((model(shard.x) - shard.y) ** 2).mean())
"""


def own(*words, timeout_s=60):
    return OwnJob(words=words, on="", timeout_s=timeout_s)


@pytest.mark.full
def test_a_job_is_run_under_a_policy_and_stopped():
    (even,) = balance(own(*JOB, "epochs=9"), ["even"], rounds=1, steps=8)
    assert (even["system"], even["of_even"], even["plan"]) == ("even", 1.0, "even")
    assert even["samples_per_s"]["median"] > 0


@pytest.mark.parametrize(
    ("job", "message"),
    [
        (own(*JOB, "workerz=2"), "workerz"),
        pytest.param(
            own(*JOB, "batch=128", "epochs=1"),
            "has 12 steps, and the first 16 are not counted",
            marks=pytest.mark.full,
        ),
        (own(*JOB, "hosts=2"), "hosts=2 needs --on ENGINE; this machine alone is --hosts 1"),
        (own(*JOB, timeout_s=0), "only 0 steps within 0 s; raise --timeout-s"),
    ],
)
def test_a_job_that_cannot_be_measured_is_refused(job, message):
    with pytest.raises(JobError, match=message):
        balance(job, ["even"], rounds=1, steps=8)


@pytest.mark.parametrize("rows", [own_recovery.rows, partial(own_job.scaling, steps=8)])
def test_hosts_that_nothing_places_are_refused_before_anything_is_measured(rows, capfd):
    with pytest.raises(JobError, match="hosts=2 needs --on ENGINE"):
        rows(own(*JOB, "epochs=1"), [1, 2], rounds=1)
    assert capfd.readouterr() == ("", "")


@pytest.mark.full
def test_a_task_of_ones_own_recovers_from_a_worker_that_exits(tmp_path):
    (tmp_path / "sizes.py").write_text("SIZE = 3\n")
    (tmp_path / "mine.py").write_text(OWN_TASK)
    job = own(f"{tmp_path}/mine.py:train", "workers=2", "batch=8")
    (row,) = own_recovery.rows(job, [1], rounds=1)
    assert (row["fault"], row["same_weights"], row["steps_lost"]) == ("worker", True, 0)
    assert row["committed_s"]["median"] > row["step_s"]["median"] > 0
