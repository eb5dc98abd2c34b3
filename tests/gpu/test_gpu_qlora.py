"""Section 9: QLoRA on a GPU. The frozen weights are mapped once a host, and each worker computes on
a copy.
"""

import statistics
import time

import numpy as np
import pytest
import torch

from conftest import events_of, killing, metrics_of, needs_gpu, needs_library
from holdfast.arena.base_cache import cached_base
from holdfast.job import load
from holdfast.tasks import reference as tasks

pytestmark = [
    pytest.mark.slow,
    needs_gpu,
    needs_library("bitsandbytes", "peft"),
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("default"),
]

TINY = {
    "task": "qlora",
    "data": {"name": "synthetic-text", "size": 16384, "length": 32},
    "model": {
        "name": "mistral", "width": 128, "layers": 2, "heads": 4, "kv_heads": 2,
        "feedforward": 256, "vocabulary": 256,
    },
    "optimizer": {"name": "adamw", "lr": 0.005},
    "schedule": {"name": "constant"},
    "clip_norm": None,
    "precision": "bf16",
    "batch": 32,
    "shards": 2,
    "epochs": 1,
    "device": "cuda",
}  # fmt: skip


def test_a_killed_worker_changes_no_adapter(train, tmp_path):
    run_dir = tmp_path / "run"
    alone = train(workers=1, **TINY)
    watch = killing(run_dir, step=4, rank=1)
    result = train(run_dir=run_dir, watch=watch, workers=2, **TINY)
    assert events_of(run_dir, "worker-exited")
    assert result["weights_sha256"] == alone["weights_sha256"]
    assert result["metrics"]["perplexity"] < result["metrics"]["perplexity_before"]


def test_scales_and_buffers_are_on_the_gpu():
    from holdfast.job.models import MistralSpec
    from holdfast.models import mistral

    spec = MistralSpec(**TINY["model"])
    model = mistral.network(spec, dict(mistral.tensors(spec, 0)))
    model.to("cuda")
    tensors = [*model.parameters(), *model.buffers()]
    for parameter in model.parameters():
        if state := getattr(parameter, "quant_state", None):
            tensors += [state.absmax, state.code, state.state2.absmax]
    assert {tensor.device.type for tensor in tensors} == {"cuda"}
    x = torch.randint(256, (2, 16), device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        model(x).sum().backward()


WARM, STEPS = 10, 20


def plain_steps_per_s(job):
    """Speed of a loop without holdfast, whose batches are in pinned memory."""
    task = tasks.load(job.task)(job)
    bases = [(f, cached_base(f.cache, f.name, f.key, f.build)) for f in task.frozen()]
    task.tensors = {frozen.name: base.tensors for frozen, base in bases}
    model = task.model().cuda()
    optimizer = task.optimizer([p for p in model.parameters() if p.requires_grad])
    indices = np.arange(job.batch, dtype=np.int64)
    batch = task.training_data().batch(indices, torch.Generator())
    batch = [each.pin_memory() for each in batch]
    for step in range(WARM + STEPS):
        if step == WARM:
            torch.cuda.synchronize()
            began = time.perf_counter()
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            task.loss(model, tuple(each.to("cuda", non_blocking=True) for each in batch)).backward()
        optimizer.step()
    torch.cuda.synchronize()
    return STEPS / (time.perf_counter() - began)


def test_a_worker_is_nearly_as_fast_as_a_plain_loop(train, tmp_path, record_property):
    words = [
        "data={name: synthetic-text, size: 150000, length: 512}", "batch=8", "workers=1",
        "device=cuda", "precision=bf16", "checkpoint.every_steps=0", f"model.cache={tmp_path}",
    ]  # fmt: skip
    job = load.load("qlora", words).resolved()
    train(run_dir=tmp_path / "run", **job.model_dump(exclude_unset=True))
    steps = [line for line in metrics_of(tmp_path / "run") if "loss" in line]
    seconds = statistics.mean(line["seconds"] for line in steps[WARM : WARM + STEPS])
    ratio = 1 / seconds / plain_steps_per_s(job)
    record_property("of_plain", round(ratio, 3))
    assert ratio >= 0.95
