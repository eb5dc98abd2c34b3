"""`holdfast.report`, and the steps of a script that its optimizer makes."""

import json
import subprocess
import sys
from collections import OrderedDict
from math import inf, nan

import pytest
import torch
from torch.optim import optimizer

import holdfast
from holdfast.arena.memory import Arena
from holdfast.arena.worker_status import progress_of
from holdfast.errors import JobError
from holdfast.worker.script import report
from holdfast.worker.script.script_steps import ScriptSteps


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Begin a script as one start of it does: `start(rank=0) -> its progress, when called`."""
    arena = Arena.create(2)
    monkeypatch.setattr(report, "receiver", None)
    monkeypatch.setattr(optimizer, "_global_optimizer_post_hooks", hooks := OrderedDict())

    def begin(rank=0):
        hooks.clear()
        steps = ScriptSteps(arena, rank, [0, 1], tmp_path)
        steps.begin()
        return steps, lambda: progress_of(arena, [rank])[rank]

    return begin


@pytest.fixture
def recorded(tmp_path):
    """The steps and losses in the metrics."""

    def lines():
        path = tmp_path / "metrics.jsonl"
        text = path.read_text() if path.exists() else ""
        return [(line["step"], line["loss"]) for line in map(json.loads, text.splitlines())]

    return lines


def model():
    weight = torch.nn.Parameter(torch.zeros(1))
    weight.grad = torch.ones(1)
    return torch.optim.SGD([weight], lr=0.1)


def test_outside_of_a_run_a_report_does_nothing_and_imports_no_torch():
    program = "import sys, holdfast; holdfast.report(1, loss=0.5); sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"step": -1}, "step is -1"),
        ({"step": 1.5}, "step is 1.5"),
        ({"step": 1, "samples": -2}, "samples is -2"),
        ({"step": 1, "loss": torch.ones(2)}, "several elements"),
    ],
)
def test_wrong_arguments_are_named_in_any_process(arguments, message):
    with pytest.raises(JobError, match=message):
        holdfast.report(**arguments)


def test_reports_reach_the_status_and_the_metrics(start, recorded):
    _, progress = start()
    holdfast.report(1, loss=torch.tensor(0.5, requires_grad=True), samples=8)
    holdfast.report(2, samples=8)
    holdfast.report(4, loss=inf, samples=16)
    assert recorded() == [(1, 0.5), (2, None), (4, None)]
    now = progress()
    assert (now.step, now.loss, now.samples) == (4, None, 32)


def test_only_rank_0_writes_the_metrics(start, recorded):
    _, progress = start(rank=1)
    holdfast.report(3, loss=1.0)
    assert (recorded(), progress().step, progress().loss) == ([], 3, 1.0)


def test_steps_that_come_again_replace_those_before(start, recorded):
    start()
    for step in range(1, 8):
        holdfast.report(step, loss=1.0)
    holdfast.report(6, loss=2.0)
    assert recorded()[4:] == [(5, 1.0), (6, 2.0)]
    start()
    holdfast.report(4, loss=3.0)
    assert recorded() == [(1, 1.0), (2, 1.0), (3, 1.0), (4, 3.0)]


def test_without_reports_the_first_optimizer_counts(start, recorded):
    steps, progress = start()
    first, second = model(), model()
    for _ in range(3):
        first.step()
        second.step()
    assert (progress().step, progress().loss) == (3, None)
    steps.settle()
    assert recorded() == [(1, None), (2, None), (3, None)]
    steps, progress = start()
    assert progress().step == 3
    first.step()
    steps.settle()
    assert recorded()[2:] == [(3, None), (4, None)]
    holdfast.report(3, loss=1.0)
    assert recorded() == [(3, 1.0)]


def test_a_script_that_reports_is_not_counted_also_after_a_restart(start, recorded):
    start()
    first = model()
    for step in range(1, 25):
        first.step()
        if step % 10 == 0:
            holdfast.report(step, loss=nan)
    assert recorded() == [(10, None), (20, None)]
    _, progress = start()
    first.step()
    assert (recorded(), progress().step) == ([(10, None), (20, None)], 0)
    holdfast.report(21, loss=1.0)
    assert recorded() == [(10, None), (20, None), (21, 1.0)]


def test_a_process_that_the_script_has_forked_reports_nothing(start, recorded):
    _, progress = start()
    context = torch.multiprocessing.get_context("fork")
    child = context.Process(target=holdfast.report, args=(1,))
    child.start()
    child.join()
    assert (child.exitcode, recorded(), progress().step) == (0, [], 0)
