"""Time model of a step on several hosts, fitted to measured steps. Pure.

A step of H hosts takes t(H) = c + i(H) + r(H) + k:

    c   compute time of a host
    i   imbalance: c times the expected largest of H deviations
    r   time to reduce S bytes: ρ S, and on several hosts α + β S (H-1)/H + γ S (H-1) more
    k   control: the rest of a step

ρ is the time of a byte on one host, α that of a reduction of nothing, and β that of a byte on a
link, which it passes twice, in a reduce-scatter and an all-gather. A host sends S (H-1)/H in each
(Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations in MPICH",
IJHPCA 2005; the α-β model is Hockney's, 1994). β is known: links are shaped. γ is the time of a
byte on the cores that emulated hosts share, on which all of them send S (H-1). A host with a core
of its own needs γ times the shared cores for each byte that it sends itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np
from scipy.optimize import nnls


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
    """

    rho: float
    alpha_s: float
    beta: float
    gamma: float
    control_s: float
    size_bytes: int

    def reduce_s(self, hosts: int) -> float:
        """Time to reduce."""
        local_s = self.rho * self.size_bytes
        if hosts == 1:
            return local_s
        own, shared = _sent(self.size_bytes, hosts)
        return local_s + self.alpha_s + self.beta * own + self.gamma * shared

    def step_s(self, hosts: int, compute_s: float, spread: float) -> float:
        """Time of a step.

        Args:
            hosts: How many.
            compute_s: Compute time of a host.
            spread: Standard deviation of compute times, as a share of the mean.
        """
        imbalance_s = compute_s * spread * largest_of(hosts)
        return compute_s + imbalance_s + self.reduce_s(hosts) + self.control_s

    def on_own_cores(self, shared_cores: int) -> TimeModel:
        """The model of hosts with a core each for the network, which share nothing else.

        Args:
            shared_cores: Those of the machine that was measured.
        """
        return replace(self, beta=self.beta + shared_cores * self.gamma, gamma=0.0)


def fit(samples: Sequence[Sample], size_bytes: int, link_bytes_per_s: float) -> TimeModel:
    """The model that is closest to measured runs: least squares with coefficients of at least 0.

    Args:
        samples: At least one.
        size_bytes: Of the reduced gradient.
        link_bytes_per_s: The rate of a host's link.
    """
    beta = 2 / link_bytes_per_s
    rows = []
    targets = []
    for each in samples:
        own, shared = _sent(size_bytes, each.hosts)
        rows.append([size_bytes, float(each.hosts > 1), shared])
        targets.append(max(0.0, each.sync_s - beta * own))
    matrix = np.array(rows, dtype=np.float64)
    scale = np.maximum(matrix.max(axis=0), 1e-12)
    found, _ = nnls(matrix / scale, np.array(targets))
    rho, alpha, gamma = (float(value) for value in found / scale)
    return TimeModel(
        rho=rho,
        alpha_s=alpha,
        beta=beta,
        gamma=gamma,
        control_s=float(np.mean([each.control_s for each in samples])),
        size_bytes=size_bytes,
    )


def held_out(
    samples: Sequence[Sample], size_bytes: int, link_bytes_per_s: float
) -> list[float | None]:
    """The predicted step of each run, from a fit to all runs of other numbers of hosts; None if
    there is none.
    """
    predicted: list[float | None] = []
    for each in samples:
        others = [other for other in samples if other.hosts != each.hosts]
        if not others:
            predicted.append(None)
            continue
        model = fit(others, size_bytes, link_bytes_per_s)
        spread = float(np.mean([other.spread for other in others if other.hosts > 1] or [0.0]))
        predicted.append(model.step_s(each.hosts, each.compute_s, spread))
    return predicted


def largest_of(count: int) -> float:
    """The expected largest of `count` standard normal deviations, nearly (Blom, 1958)."""
    return 0.0 if count == 1 else NormalDist().inv_cdf((count - 0.375) / (count + 0.25))


def powers_of_two(most: int) -> list[int]:
    """1, 2, 4 and so on up to `most`."""
    return [1 << exponent for exponent in range(int(math.log2(most)) + 1)]


def _sent(size_bytes: int, hosts: int) -> tuple[float, float]:
    """The bytes that a host sends in each half of a reduction, and that all hosts send."""
    return size_bytes * (hosts - 1) / hosts, float(size_bytes * (hosts - 1))
