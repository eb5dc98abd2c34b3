"""Recovery on a GPU gives the same weights: real models, one and two workers, every fault."""

import json

import pytest

from conftest import needs_gpu

pytestmark = [pytest.mark.slow, needs_gpu, pytest.mark.timeout(600)]

RESNET = [
    "resnet50", "data.size=1024", "model.width=32", "batch=64", "epochs=1", "shards=4",
    "schedule.warmup_steps=2",
]  # fmt: skip
GPT2 = [
    "gpt2", "data={name: synthetic-text, size: 65536, length: 64}", "batch=32", "epochs=1",
    "shards=4", "model.layers=6", "schedule.warmup_steps=2",
]  # fmt: skip


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("job", [RESNET, GPT2], ids=["resnet50", "gpt2"])
def test_a_drill_ends_with_the_same_weights(command_line, tmp_path, job, workers):
    words = [*job, f"workers={workers}", "device=cuda", "threads_per_worker=1"]
    options = ["--faults", "kill,stop,nan", "--policies", "replace", "--run", str(tmp_path / "run")]
    status, output, errors = command_line("drill", *words, *options, "--json")
    assert status == 0, errors
    report = json.loads(output)
    assert [trial["passed"] for trial in report["trials"]] == [True] * 3
