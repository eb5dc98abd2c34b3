"""The policies are compared on a job of one's own, by runs of `holdfast train`."""

import pytest

from holdfast.errors import JobError
from holdfast_bench.own_job import OwnJob, balance

pytestmark = [pytest.mark.slow, pytest.mark.exec]

JOB = ["digits", "model={name: mlp}", "workers=2", "shards=4"]


def own(*words, **options):
    given = {"on": "", "warm_steps": 2, "steps": 8, "timeout_s": 60, **options}
    return OwnJob(words=words, **given)


@pytest.mark.full
def test_a_job_is_run_under_a_policy_and_stopped():
    (even,) = balance(own(*JOB, "epochs=9"), ["even"], rounds=1)
    assert (even["system"], even["of_even"], even["plan"]) == ("even", 1.0, "even")
    assert even["samples_per_s"]["median"] > 0


@pytest.mark.parametrize(
    ("job", "message"),
    [
        (own(*JOB, "workerz=2"), "train digits .* has failed: .*workerz"),
        pytest.param(
            own(*JOB, "epochs=1", warm_steps=99),
            "has 23 steps, and the first 99 are not counted",
            marks=pytest.mark.full,
        ),
    ],
)
def test_a_job_that_cannot_be_measured_is_refused(job, message):
    with pytest.raises(JobError, match=message):
        balance(job, ["even"], rounds=1)
