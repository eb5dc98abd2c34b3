"""Section 3: a step does not wait for the GPU, apart from the first ones."""

from pathlib import Path

import pytest
from checked_device import DEVICE, ON_GPU, on_cpu
from steady_tasks import STEADY

from conftest import printed
from holdfast_bench.gpu.loads import LOADS

pytestmark = pytest.mark.slow

SIZE = "small" if ON_GPU else "tiny"


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("load", on_cpu(["gpt2", "resnet50"], 0))
def test_a_steady_step_does_not_wait_for_the_device(train, tmp_path, load, shards):
    name = f"{load}-{SIZE}"
    train(
        run_dir=tmp_path / "run",
        task=f"{Path(__file__).with_name('steady_tasks.py')}:main",
        params={"load": name},
        batch=LOADS[name].batch * shards,
        shards=shards,
        epochs=1,
        device=DEVICE,
        exchange="auto" if ON_GPU else "mapped",  # in device memory that outlives the worker
        precision="bf16",
        clip_norm=None,
        loader={"pin_memory": True},
    )
    assert f"steady {STEADY}" in printed(tmp_path)
