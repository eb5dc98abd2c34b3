"""The AUC recipe: its metrics are those of one process that has all samples."""

import runpy
from itertools import pairwise

import pytest
import torch
from test_recipes import RECIPES, job_of

from holdfast.engines.run import LaunchOptions
from holdfast.engines.train import run_job

(RECIPE,) = [path for path in RECIPES if path.stem == "auc"]


@pytest.mark.slow
def test_metrics_are_those_of_one_process(forks, tmp_path):
    recipe, options = runpy.run_path(str(RECIPE)), LaunchOptions(forks=forks)
    result = run_job(job_of(RECIPE, 1), options, run_dir=tmp_path / "run", resume=False)
    model, metrics = recipe["network"](), recipe["metrics"]()
    result.load_into(model.eval())
    num_samples, ranges = len(recipe["test"]), result_ranges(len(recipe["test"]), 4)
    assert sum(map(len, ranges)) == num_samples
    with torch.no_grad():
        batches = [recipe["predictions"](model, recipe["test"][rows]) for rows in ranges]
    values = metrics(*(torch.cat(column) for column in zip(*batches, strict=True)))
    assert {name: value.tolist() for name, value in values.items()} == result.metrics
    assert sum(map(sum, result.metrics["confusion"])) == num_samples
    assert result.best["value"] == max(result.evaluations["auc"])
    assert result.as_dict()["confusion"] == result.metrics["confusion"]


def result_ranges(num_samples, num_ranges, batch=100):
    """The samples of each batch, as the model saw them: shapes may decide how sums round."""
    ends = [num_samples * at // num_ranges for at in range(num_ranges + 1)]
    return [
        list(range(first, min(first + batch, end)))
        for start, end in pairwise(ends)
        for first in range(start, end, batch)
    ]
