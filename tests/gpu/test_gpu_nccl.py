"""Section 8: NCCL, where each worker of `sync: ddp` has a GPU of its own; scores of GPUs."""

import json
import time

import pytest
import torch
from torch.distributed import HashStore, PrefixStore

from conftest import events_of, killing, needs_gpu
from holdfast.worker.process_groups.device_messages import ABORT_TIMEOUT_S, backend_on

pytestmark = [pytest.mark.slow, needs_gpu, pytest.mark.timeout(600)]

DDP = {
    "sync": "ddp",
    "device": "cuda",
    "checkpoint": {"every_steps": 3},
    "epochs": 4,
    "env": {"NCCL_DEBUG": "VERSION"},
}
needs_two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=needs_two_gpus)])
def test_nccl_is_set_up_and_set_up_again_after_a_kill(train, tmp_path, workers):
    reference = train(workers=workers, **DDP)
    run_dir = tmp_path / "run"
    watch = killing(run_dir, step=5, rank=workers - 1)
    result = train(run_dir=run_dir, watch=watch, workers=workers, **DDP)
    assert events_of(run_dir, "worker-exited")
    assert result["steps"] == reference["steps"]
    assert result["weights_sha256"] == reference["weights_sha256"]
    logs = "".join(path.read_text() for path in (run_dir / "logs").iterdir())
    assert "NCCL version" in logs, "NCCL was not used"


def test_a_communicator_is_set_up_again_after_its_abort(record_property):
    device = torch.device("cuda", 0)
    torch.cuda.synchronize(device)
    store = HashStore()
    for generation in range(3):
        began = time.monotonic()
        backend = backend_on(device, PrefixStore(str(generation), store), 0, 1)
        backend.eager_connect_single_device(device)
        connected = time.monotonic()
        backend.abort()
        took = {"connect_s": connected - began, "abort_s": time.monotonic() - connected}
    # The first of them also loads the library; so the last one counts.
    for name, seconds in took.items():
        record_property(name, round(seconds, 3))
    assert max(took.values()) < ABORT_TIMEOUT_S


def test_ddp_trains_on_a_shared_gpu(train):
    assert train(workers=2, **DDP)["steps"] == 24


def test_a_gpu_scores_far_more_than_its_host(command_line):
    _, output, _ = command_line("profile", "--json")
    (host,) = json.loads(output)["hosts"].values()
    scores = {device["kind"]: device["score"] for device in host["devices"]}
    assert scores["gpu"] > 3 * scores["cpu"]
