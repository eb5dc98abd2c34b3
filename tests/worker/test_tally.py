"""What evaluations add up, from ranges of samples to results."""

import warnings

import pytest
import torch

from conftest import Library
from holdfast.errors import JobError
from holdfast.worker.evaluation import _encode, _results
from holdfast.worker.metric_states import tally_of, together

classification = Library("torchmetrics.classification")
metrics = Library("sklearn.metrics")
torchmetrics = Library("torchmetrics")

CLASSES = 3
GENERATOR = torch.Generator().manual_seed(0)
SCORES = torch.randn(90, CLASSES, generator=GENERATOR).softmax(1)
LABELS = torch.randint(CLASSES, (90,), generator=GENERATOR)


def evaluated(tally, measured, owners, batch=7):
    """What workers make of ranges of samples: `owners` says which worker has which range."""
    payloads = []
    for worker in sorted(set(owners)):
        states = {}
        for at in (at for at, owner in enumerate(owners) if owner == worker):
            own = tally.fresh()
            start, end = (90 * each // len(owners) for each in (at, at + 1))
            for first in range(start, end, batch):
                rows = slice(first, min(first + batch, end))
                own.add(measured(rows), rows.stop - rows.start)
            states[at] = own.state()
        payloads.append(_encode(states))
    return _results(tally, payloads)


def scored(rows):
    return SCORES[rows], LABELS[rows]


def gave(value):
    """A metric's value as results have it."""
    return value.tolist() if isinstance(value, torch.Tensor) else value


METRICS = {
    "auc": lambda: classification.MulticlassAUROC(CLASSES),
    "binned": lambda: classification.MulticlassAUROC(CLASSES, thresholds=20),
    "confusion": lambda: classification.MulticlassConfusionMatrix(CLASSES),
    "f1": lambda: classification.MulticlassF1Score(CLASSES, average="macro"),
    "curve": lambda: classification.MulticlassROC(CLASSES, thresholds=5),
    "calibration": lambda: classification.MulticlassCalibrationError(CLASSES),
    "both": lambda: classification.MulticlassAccuracy(CLASSES) + classification.MulticlassRecall(
        CLASSES
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", METRICS)
def test_a_metric_of_torchmetrics_is_that_of_one_process(name):
    alone = METRICS[name]()
    alone.update(SCORES, LABELS)
    used_before = METRICS[name]()
    used_before.update(SCORES[:5], LABELS[:5])
    tally = tally_of({name: used_before})
    results = [evaluated(tally, scored, owners) for owners in ([0] * 4, [0, 0, 1, 2], [2, 1, 0, 0])]
    assert results[0] == results[1] == results[2]
    expected = alone.compute()
    parts = expected if isinstance(expected, tuple) else (expected,)
    values = results[0][name] if isinstance(expected, tuple) else (results[0][name],)
    for value, part in zip(values, parts, strict=True):
        torch.testing.assert_close(torch.tensor(value), part)
    assert used_before.update_count == 1


def test_metrics_with_other_reductions_are_combined():
    tally = tally_of(
        {
            "largest": torchmetrics.MaxMetric(),
            "mean": torchmetrics.MeanMetric(),
            "all": torchmetrics.CatMetric(),
            "range": torchmetrics.MinMaxMetric(torchmetrics.MeanMetric()),
        }
    )
    found = [
        evaluated(tally, lambda rows: SCORES[rows, 0], owners) for owners in ([0] * 4, [1, 0, 2, 0])
    ]
    assert found[0] == found[1]
    assert found[0]["largest"] == SCORES[:, 0].max().item()
    assert found[0]["mean"] == pytest.approx(SCORES[:, 0].mean().item())
    assert found[0]["all"] == SCORES[:, 0].tolist()
    assert found[0]["range.raw"] == pytest.approx(SCORES[:, 0].mean().item())


def test_a_correlation_that_combines_states_by_itself_is_right():
    tally = tally_of({"correlation": torchmetrics.PearsonCorrCoef()})
    (value,) = evaluated(tally, lambda rows: (SCORES[rows, 0], SCORES[rows, 1]), [0, 1, 1]).values()
    assert value == pytest.approx(torch.corrcoef(SCORES[:, :2].T)[0, 1].item(), abs=1e-6)


def test_a_function_gets_all_that_was_measured_in_order():
    def both(scores, labels):
        assert torch.equal(scores, SCORES)
        assert torch.equal(labels, LABELS)
        return {
            "auc": metrics.roc_auc_score(labels, scores, multi_class="ovr"),
            "count": len(labels),
        }

    found = evaluated(tally_of({"sklearn": both}), scored, [1, 0, 0, 2])
    assert found == {
        "sklearn.auc": metrics.roc_auc_score(LABELS, SCORES, multi_class="ovr"), "sklearn.count": 90
    }  # fmt: skip


def test_means_are_weighted_by_samples_and_do_not_depend_on_workers():
    def measured(rows):
        return {"score": SCORES[rows, 0].double().mean(), "one": 1.0}

    found = [evaluated(tally_of(None), measured, owners) for owners in ([0] * 4, [2, 0, 1, 1])]
    assert found[0] == found[1]
    assert found[0]["one"] == 1.0
    assert found[0]["score"] == pytest.approx(SCORES[:, 0].double().mean().item(), abs=1e-12)


@pytest.mark.parametrize(
    ("metrics", "measured", "message"),
    [
        (None, lambda rows: {}, "measures means by name, as a dictionary; it gave {}"),
        (None, lambda rows: 0.5, "measures means by name, as a dictionary; it gave 0.5"),
        (None, lambda rows: {str(rows.start): 1.0}, r"the same values .* \['0'\] and then"),
        (None, lambda rows: {"a": torch.ones(2)}, r"measured a as a tensor of shape \(2,\)"),
        ({}, scored, "the evaluation has no metrics"),
        ({"x": 3}, scored, "the metric x is a int; give a metric of torchmetrics"),
        ({"x": len}, lambda rows: {"a": 1.0}, r"it gave a dictionary with \['a'\]"),
        ({"x": len}, lambda rows: 3, "x is a function of tensors .* measured a int"),
        ({"x": lambda *_: "s"}, scored, "the metric x gave a str"),
        ({"x": lambda *_: torch.arange(20_000)}, scored, "take .* bytes, most of it x"),
    ],
)
def test_what_cannot_be_added_up_is_refused(metrics, measured, message):
    with pytest.raises(JobError, match=message):
        evaluated(tally_of(metrics), measured, [0, 1])


def test_an_evaluation_of_nothing_is_refused():
    with pytest.raises(JobError, match="no samples to evaluate on"):
        _results(tally_of(None), [_encode({})])


def test_a_metric_computes_without_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        evaluated(tally_of({"f1": METRICS["f1"]()}), scored, [0, 1])


def test_results_of_several_evaluations_need_different_names():
    assert together([{"a": 1}, {"b": [2]}]) == {"a": 1, "b": [2]}
    with pytest.raises(JobError, match="two evaluations measure a; give"):
        together([{"a": 1}, {"a": 2}])
