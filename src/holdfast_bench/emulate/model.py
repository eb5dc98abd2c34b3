"""Time model of a step on several hosts, fitted to measured steps. Pure.

A step of H hosts takes t(H) = c + i(H) + r(H) + k:

    c   compute time of a host
    i   imbalance: c times the expected largest of H deviations
    r   visible time to synchronize: ρ S on one host, α (H-1) + max(m/L, m - (1 - 1/L) b) on several
    m   time to move the gradient, S bytes, between hosts: β S (H-1)/H + γ S (H-1)
    b   the part of c in the backward pass
    k   control: the rest of a step

Blocks move while a backward pass computes others (`worker.step.sent_ahead`), layer by layer, of
which there are L. The first layer computed moves from b/L after the pass begins, the last one after
its end, so that one is always visible. If m is longer than b, links are busy all the time between.

ρ is the time of a byte on one host, and β that of a byte on a link, which it passes twice, in a
reduce-scatter and an all-gather. A host sends S (H-1)/H in each (Thakur, Rabenseifner and Gropp,
"Optimization of Collective Communication Operations in MPICH", IJHPCA 2005). β is known: links are
shaped. α and γ, for a reduction and for a byte, are work on the cores that emulated hosts share, on
which all do it. A host with a core of its own needs them (H-1)/H times the shared cores. Where
bytes are hidden, α and γ S/L look alike: the smallest γ that explains the samples is chosen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import NormalDist
from typing import Final

import numpy as np
from scipy.optimize import lsq_linear

from holdfast_bench.emulate.task import IN_FORWARD, LAYERS

LAST: Final = 1 / LAYERS
"""The part of the gradient that a backward pass completes when it ends."""
HIDES: Final = (1 - IN_FORWARD) * (1 - LAST)
"""The part of the compute time during which blocks can move."""
SMALL: Final = 1e-5
"""Weight of γ itself in a fit: it decides only between models that are equally close."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The steps of a measured run, means in seconds.

    Attributes:
        hosts: How many hosts.
        compute_s: Compute time of a host.
        spread: Standard deviation of compute times, as a share of the mean.
        imbalance_s: By how much the slowest host computes longer than the mean.
        reduce_s: Time in which a host reduces.
        wait_s: Time in which it waits for parts that others reduce, and for the network.
        step_s: Of all.
    """

    hosts: int
    compute_s: float
    spread: float
    imbalance_s: float
    reduce_s: float
    wait_s: float
    step_s: float

    @property
    def sync_s(self) -> float:
        """Time to reduce, with waits."""
        return self.reduce_s + self.wait_s

    @property
    def control_s(self) -> float:
        """The rest of the step."""
        return max(0.0, self.step_s - self.compute_s - self.imbalance_s - self.sync_s)

    @property
    def lost(self) -> dict[str, float]:
        """Losses of the steps by cause, as shares of a step."""
        return {
            "reduce": self.reduce_s / self.step_s,
            "wait": self.wait_s / self.step_s,
            "imbalance": self.imbalance_s / self.step_s,
            "control": self.control_s / self.step_s,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeModel:
    """A fitted model; see above.

    Attributes:
        rho, alpha_s, beta, gamma: Seconds; those without a unit are per byte.
        control_s: The rest of a step.
        size_bytes: Of the gradient.
        own_cores: How many hosts shared when measured, and now have one each; 0: they share them.
    """

    rho: float
    alpha_s: float
    beta: float
    gamma: float
    control_s: float
    size_bytes: int
    own_cores: int

    def _times(self, hosts: int) -> float:
        """For how long a host waits for work that each does, as a multiple of that work."""
        return (hosts - 1) * (self.own_cores / hosts if self.own_cores else 1)

    def move_s(self, hosts: int) -> float:
        """Time to move the gradient between hosts, visible or not."""
        on_link_s = self.beta * self.size_bytes * (hosts - 1) / hosts
        return on_link_s + self.gamma * self.size_bytes * self._times(hosts)

    def sync_s(self, hosts: int, compute_s: float) -> float:
        """Visible time to synchronize hosts that compute for so long."""
        if hosts == 1:
            return self.rho * self.size_bytes
        move_s = self.move_s(hosts)
        return self.alpha_s * self._times(hosts) + max(LAST * move_s, move_s - HIDES * compute_s)

    def step_s(self, hosts: int, compute_s: float, spread: float) -> float:
        """Time of a step.

        Args:
            hosts: How many.
            compute_s: Compute time of a host.
            spread: Standard deviation of compute times, as a share of the mean.
        """
        imbalance_s = compute_s * spread * largest_of(hosts)
        return compute_s + imbalance_s + self.sync_s(hosts, compute_s) + self.control_s

    def on_own_cores(self, shared_cores: int) -> TimeModel:
        """The model of hosts with a core each for the network, which share nothing else.

        Args:
            shared_cores: Those of the machine that was measured.
        """
        return replace(self, own_cores=shared_cores)


def fit(samples: Sequence[Sample], size_bytes: int, link_bytes_per_s: float) -> TimeModel:
    """The model that is closest to measured runs: least squares of the visible time as a share of
    a step, with coefficients of at least 0.

    Args:
        samples: At least one.
        size_bytes: Of the reduced gradient.
        link_bytes_per_s: The rate of a host's link.
    """
    alone = [each.sync_s for each in samples if each.hosts == 1]
    several = [each for each in samples if each.hosts > 1]
    start = TimeModel(
        rho=float(np.mean(alone or [0.0])) / size_bytes,
        alpha_s=0.0,
        beta=2 / link_bytes_per_s,
        gamma=0.0,
        control_s=float(np.median([each.control_s for each in samples])),
        size_bytes=size_bytes,
        own_cores=0,
    )
    gammas = {0.0}
    for each in several:
        shared = size_bytes * (each.hosts - 1)
        hidden_s = max(0.0, (1 - IN_FORWARD) * each.compute_s - start.move_s(each.hosts))
        gammas |= {hidden_s / shared, (hidden_s + each.step_s) / shared}
    # Between two of them a sample is either hidden or not: its time is linear in α and γ.
    found = [_closest(start, several, *bounds) for bounds in pairwise(sorted(gammas))]
    return min(found, key=lambda each: each[0], default=(0.0, start))[1]


def _closest(
    start: TimeModel, samples: Sequence[Sample], low: float, high: float
) -> tuple[float, TimeModel]:
    """The cost of the closest model with a γ in a range, and this model."""
    small = SMALL * start.size_bytes
    models = [replace(start, gamma=gamma) for gamma in (low, high)]
    rows = [[0.0, small * (high - low), -small * low]]
    for each in samples:
        at_low, at_high = (model.sync_s(each.hosts, each.compute_s) for model in models)
        row = [each.hosts - 1.0, at_high - at_low, each.sync_s - at_low]
        rows.append([seconds / each.step_s for seconds in row])
    matrix = np.array(rows)
    found = lsq_linear(matrix[:, :2], matrix[:, 2], (0.0, [math.inf, 1.0]), method="bvls")
    alpha_s, part = map(float, found.x)
    return found.cost, replace(start, alpha_s=alpha_s, gamma=low + part * (high - low))


def held_out(
    samples: Sequence[Sample], size_bytes: int, link_bytes_per_s: float
) -> list[float | None]:
    """The predicted step of each run with its own compute time, from a fit to all runs of other
    numbers of hosts; None if there is none.
    """
    predicted: list[float | None] = []
    for each in samples:
        others = [other for other in samples if other.hosts != each.hosts]
        if not others:
            predicted.append(None)
            continue
        model = fit(others, size_bytes, link_bytes_per_s)
        spread = float(np.median([other.spread for other in others if other.hosts > 1] or [0.0]))
        predicted.append(model.step_s(each.hosts, each.compute_s, spread))
    return predicted


def largest_of(count: int) -> float:
    """The expected largest of `count` standard normal deviations, nearly (Blom, 1958)."""
    return 0.0 if count == 1 else NormalDist().inv_cdf((count - 0.375) / (count + 0.25))


def powers_of_two(most: int) -> list[int]:
    """1, 2, 4 and so on up to `most`."""
    return [1 << exponent for exponent in range(int(math.log2(most)) + 1)]
