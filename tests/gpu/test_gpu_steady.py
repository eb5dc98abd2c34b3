"""Section 3: a step does not wait for the GPU, apart from the first ones."""

from pathlib import Path

import pytest
from checked_device import DEVICE, ON_GPU
from steady_tasks import STEADY

from conftest import printed
from holdfast_bench.gpu.loads import LOADS

pytestmark = pytest.mark.slow

LOADS_HERE = ["gpt2", "resnet50-small"] if ON_GPU else ["gpt2-tiny"]
"""Not the GPT-2 of transformers, which waits for the device by itself."""


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("load", LOADS_HERE)
def test_a_steady_step_does_not_wait_for_the_device(train, tmp_path, load, shards):
    train(
        run_dir=tmp_path / "run",
        task=f"{Path(__file__).with_name('steady_tasks.py')}:main",
        params={"load": load},
        batch=LOADS[load].batch * shards,
        shards=shards,
        epochs=1,
        device=DEVICE,
        exchange="auto" if ON_GPU else "mapped",  # in device memory that outlives the worker
        precision="bf16",
        clip_norm=None,
        loader={"pin_memory": True},
        checkpoint={"memory": "never"},  # a snapshot waits
    )
    assert f"steady {STEADY}" in printed(tmp_path)
