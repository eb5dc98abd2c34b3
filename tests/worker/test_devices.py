"""GPUs that workers choose, on machines whose torch says it has some."""

import pytest
import torch

from conftest import SMALL
from holdfast.agent.run_context import RunContext
from holdfast.core.placement.shares import Slots
from holdfast.errors import JobError
from holdfast.job import load
from holdfast.worker.devices import choose_device, device_of


@pytest.fixture
def two_gpus(monkeypatch):
    """A torch that believes in two GPUs."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


@pytest.mark.parametrize("ranks", [(0, 1), (3, 4), (1, 3)])
def test_no_gpu_of_a_host_idles_whatever_its_ranks(tmp_path, two_gpus, ranks):
    job = load.check({**SMALL, "workers": 5}, where="test")
    run = RunContext(host="b", job=job, directory=tmp_path, attempt="0")
    slots = Slots()
    specs = [run.worker_spec(rank, slots.choose(rank, range(n))) for n, rank in enumerate(ranks)]
    assert [device_of("auto", each.slot).index for each in specs] == [0, 1]


def test_a_host_without_gpus_says_what_hides_them(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(JobError, match=r"CUDA_VISIBLE_DEVICES='' .* Set resources.gpus=1"):
        choose_device("cuda", 0)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    with pytest.raises(JobError, match="set device=cpu, or install the driver"):
        choose_device("cuda", 0)
    assert choose_device("auto", 0) == torch.device("cpu")
