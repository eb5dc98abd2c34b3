"""Stop rules: which trials of a search are stopped before their last epoch.

    asha        a trial continues past a rung if it is among the best 1/eta of those that have
                reached it: the rung rule of Li et al., "A System for Massively Parallel
                Hyperparameter Tuning", MLSys 2020, algorithm 2, without waiting for others
    hyperband   the same in brackets, which have their first rung later and later: Li et al.,
                "Hyperband", JMLR 18 (2018), algorithm 1
    median      a trial is stopped if its best value is below the median of the running averages of
                the trials that are complete: Golovin et al., "Google Vizier", KDD 2017, section
                3.1.1

A rung is a number of epochs, never of steps: with `batch` among the keys, these are not comparable.
Values are scores: the higher the better, and minus infinity for what is not finite.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from statistics import fmean, median
from typing import Final, Literal, get_args

RuleName = Literal["none", "asha", "hyperband", "median"]
RULES: Final[tuple[RuleName, ...]] = get_args(RuleName)

Curve = Sequence[tuple[int, float]]
"""The evaluations of a trial: epoch and score."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRule:
    """A rule and its arguments.

    Attributes:
        name: The rule.
        eta: One in so many trials continues past a rung.
        min_epochs: Epochs of the first rung, and before any trial is stopped by `median`.
        min_trials: Complete trials that `median` needs.
    """

    name: RuleName = "none"
    eta: int = 3
    min_epochs: int = 1
    min_trials: int = 4


def reason_to_stop(
    rule: StopRule, number: int, curves: Mapping[int, Curve], complete: Collection[int], epochs: int
) -> str:
    """The reason why a trial is to be stopped after its newest evaluation; empty if it continues.

    Args:
        rule: The rule.
        number: The trial.
        curves: Evaluations of the trials that it is compared with, and its own.
        complete: The trials among them that were not stopped.
        epochs: Epochs of a complete trial.
    """
    epoch = curves[number][-1][0]
    match rule.name:
        case "none":
            return ""
        case "asha":
            return _rung_rule(rule, number, curves, rungs(rule, epochs))
        case "hyperband":
            of = brackets(rule, epochs)
            own = of[number % len(of)]
            peers = {n: curve for n, curve in curves.items() if of[n % len(of)] == own}
            return _rung_rule(rule, number, peers, rungs(rule, epochs)[own:])
        case "median":
            if epoch < rule.min_epochs:
                return ""
            return _median_rule(rule, number, curves, complete)


def rungs(rule: StopRule, epochs: int) -> list[int]:
    """The rungs below `epochs`: `min_epochs` times the powers of `eta`."""
    found = []
    rung = rule.min_epochs
    while rung < epochs:
        found.append(rung)
        rung *= rule.eta
    return found


def brackets(rule: StopRule, epochs: int) -> list[int]:
    """The number of rungs that each trial of a round of HyperBand skips, in the trials' order."""
    most = len(rungs(rule, epochs))
    return [
        most - s
        for s in range(most, -1, -1)
        for _ in range(ceil((most + 1) / (s + 1) * rule.eta**s))
    ]


def _rung_rule(
    rule: StopRule, number: int, curves: Mapping[int, Curve], levels: Sequence[int]
) -> str:
    own = curves[number]
    before = own[-2][0] if len(own) > 1 else 0
    passed = [rung for rung in levels if before < rung <= own[-1][0]]
    if not passed:
        return ""
    rung = passed[-1]
    scores = [score for curve in curves.values() for score in _score_at(curve, rung)]
    better = sum(score > own[-1][1] for score in scores)
    kept = max(1, len(scores) // rule.eta)
    if better < kept:
        return ""
    return f"{better + 1} of {len(scores)} at epoch {rung}, where {kept} continue"


def _score_at(curve: Curve, rung: int) -> list[float]:
    """The score at a rung; none if the trial has not reached it."""
    return [score for epoch, score in curve if epoch >= rung][:1]


def _median_rule(
    rule: StopRule, number: int, curves: Mapping[int, Curve], complete: Collection[int]
) -> str:
    epoch = curves[number][-1][0]
    averages = [
        fmean(score for at, score in curves[other] if at <= epoch)
        for other in complete
        if other != number and any(at <= epoch for at, _ in curves[other])
    ]
    if len(averages) < rule.min_trials:
        return ""
    middle = median(averages)
    best = max(score for _, score in curves[number])
    if best >= middle:
        return ""
    return f"below the median of {len(averages)} trials until epoch {epoch}"
