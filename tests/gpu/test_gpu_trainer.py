"""Section 2: Hugging Face's Trainer in a run on a GPU, through a kill."""

from pathlib import Path

import pytest
from checked_device import DEVICE, ON_GPU

from conftest import killing, needs_library

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # of the libraries, to each other
    pytest.mark.skipif(not ON_GPU, reason="tests/integrations does so on a CPU"),
    needs_library("transformers", "accelerate"),
]
TASK = f"{Path(__file__).parents[1] / 'integrations' / 'finetune.py'}:main"


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_killed_worker_changes_no_weight_that_a_trainer_trains(train, tmp_path, precision):
    def tuned(name, workers, watch=None):
        given = {"use_cpu": False, "bf16": precision == "bf16"}
        params = {"output": str(tmp_path / name), "given": given}
        keys = {"batch": 64, "epochs": 1, "clip_norm": None, "shards": 2, "device": DEVICE}
        run_dir = tmp_path / f"run-{name}"
        result = train(
            task=TASK, params=params, run_dir=run_dir, workers=workers, watch=watch, **keys
        )
        return result["weights_sha256"]

    whole = tuned("one", 1)
    assert tuned("two", 2, killing(tmp_path / "run-two", step=3, rank=0)) == whole
