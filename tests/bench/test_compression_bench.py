"""`holdfast bench compression`: learning curves by steps, and by the bytes that hosts send."""

import argparse

import pytest
import torch
from torch import nn

from holdfast.data.images import Images
from holdfast.job import load
from holdfast_bench.compression import benchmark
from holdfast_bench.compression.curve import Curve, Traffic, compared
from holdfast_bench.compression.task import Repeated, StepsTask


def test_gradients_are_compressed_and_buffers_are_not():
    model = nn.Sequential(nn.Linear(256, 256, bias=False), nn.BatchNorm1d(256))
    gradients, buffers = 4 * (256 * 256 + 2 * 256), 4 * 2 * 256
    found = Traffic.of(model, ratio=8)
    assert found == Traffic(step=gradients / 8 + buffers, whole=gradients + buffers)


def test_the_last_step_is_sent_whole():
    curve = Curve([3.0, 2.0, 1.0], Traffic(step=10, whole=100))
    assert [curve.sent(step) for step in (1, 2, 3)] == [10, 20, 120]


def test_curves_are_compared_at_the_same_bytes():
    losses = [4.0, 3.0, 2.0, 1.0]
    curves = {
        "none": Curve(losses, Traffic(step=1e8, whole=10**8)),
        "few": Curve(losses, Traffic(step=1e6, whole=10**8)),
        "stuck": Curve([4.0] * 4, Traffic(step=1e6, whole=10**8)),
    }
    columns = compared(curves, "none")
    assert columns["none"]["same_bytes_loss"] == 4.0  # after its first step
    assert columns["few"]["same_bytes_loss"] == curves["few"].final == 2.5
    assert {each["target_loss"] for each in columns.values()} == {3.5}
    assert columns["none"]["target_mb"] == 200
    assert columns["stuck"]["target_mb"] is None


@pytest.mark.parametrize("workload", benchmark.WORKLOADS)
@pytest.mark.parametrize("method", benchmark.METHODS)
def test_a_job_reads_as_many_samples_as_its_steps_take(workload, method):
    keys = benchmark.job_keys(workload, method, 70, None)
    job = load.check(keys, where="test").resolved()
    assert len(StepsTask(job).training_data()) == 70 * job.batch


def test_samples_come_equally_often():
    job = load.check(benchmark.job_keys("images", "none", 70, None), where="test").resolved()
    digits = StepsTask(job)._task.training_data()
    assert isinstance(digits, Images)
    repeated = Repeated(digits, 2 * len(digits))
    chosen = [3, len(digits) + 3]
    (one, other), _ = repeated.batch(torch.tensor(chosen).numpy(), torch.Generator())
    assert torch.equal(one, other)


@pytest.mark.slow
@pytest.mark.full
def test_runs_on_two_hosts_learn_and_send_less():
    options = argparse.Namespace(
        workloads=["images"], methods=["none", "topk"], steps=30, cifar=None
    )
    none, few = benchmark.run(options).rows
    for row in (none, few):
        assert row["curve"][0][0] == 1
        assert row["curve"][-1] == pytest.approx([30, row["sent_mb"], row["train_loss"]], abs=1e-3)
        assert row["train_loss"] < row["curve"][0][2]
        assert row["accuracy"] > 0.3
    assert few["kb_per_step"] < none["kb_per_step"] / 50
    assert few["same_bytes_loss"] < none["same_bytes_loss"]
