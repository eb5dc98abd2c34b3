"""What a recipe promises beyond the same weights: checked on the run in which a worker is killed.

Each check gets the recipe's names, the run's result and events, and an empty directory.
"""

import subprocess
import sys
from itertools import pairwise

import pytest
import torch

from holdfast.checkpoint.exports.export import export


def auc(recipe, result, events, directory):
    """The metrics are those of one process that has all samples."""
    model, metrics, test = recipe["network"](), recipe["metrics"](), recipe["test"]
    result.load_into(model.eval())
    with torch.no_grad():
        outputs = [recipe["predictions"](model, test[rows]) for rows in batches(len(test), 4, 100)]
    values = metrics(*(torch.cat(column) for column in zip(*outputs, strict=True)))
    assert {name: value.tolist() for name, value in values.items()} == result.metrics
    assert sum(map(sum, result.metrics["confusion"])) == len(test)
    assert result.best["value"] == max(result.evaluations["auc"])


def batches(num_samples, num_ranges, size):
    """The samples of each batch, as workers evaluate them: shapes may decide how sums round."""
    ends = [num_samples * at // num_ranges for at in range(num_ranges + 1)]
    return [
        list(range(first, min(first + size, end)))
        for start, end in pairwise(ends)
        for first in range(start, end, size)
    ]


PLAIN = """
import sys, torch
model = torch.nn.Linear(2048, 3000)
model.load_state_dict(torch.load("weights.pt", weights_only=True))
torch.save(model(torch.load("inputs.pt", weights_only=True)), "outputs.pt")
assert "holdfast" not in sys.modules
"""


def export_and_infer(recipe, result, events, directory):
    """A process without holdfast computes the outputs of the trained model."""
    directory.mkdir()
    export(result.checkpoint, directory / "weights.pt")
    torch.save(recipe["test"], directory / "inputs.pt")
    subprocess.run([sys.executable, "-c", PLAIN], cwd=directory, check=True)
    trained, outputs = recipe["network"](), torch.load(directory / "outputs.pt", weights_only=True)
    result.load_into(trained)
    assert torch.equal(outputs, trained(recipe["test"]))
    assert torch.equal(outputs, recipe["infer"](directory / "weights.pt", recipe["test"]))
    assert outputs.argmax(1).tolist() == list(range(64))


def live_tensorboard(recipe, result, events, directory):
    """The board shows each step and evaluation once, and the recovery."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with recipe["SummaryWriter"](str(directory)) as board:
        for event in events:
            recipe["write"](board, event)
    shown = EventAccumulator(str(directory)).Reload()
    losses, history = shown.Scalars("step/loss"), result.history
    assert [loss.step for loss in losses] == history["step"] == list(range(1, 46))
    assert [loss.value for loss in losses] == pytest.approx(history["loss"])
    assert len(shown.Scalars("step/confidence")) == 45
    assert [each.step for each in shown.Scalars("evaluation/accuracy")] == [15, 30, 45]
    assert len(shown.Tensors("recovery/text_summary")) == 1


CHECKS = {
    "auc": auc,
    "export_and_infer": export_and_infer,
    "live_tensorboard": live_tensorboard,
}
