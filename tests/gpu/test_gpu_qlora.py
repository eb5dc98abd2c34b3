"""QLoRA on a GPU: the frozen weights are mapped once a host, and each worker computes on a copy."""

import pytest

from conftest import events_of, killing, needs_gpu, needs_library

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
    import torch

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
