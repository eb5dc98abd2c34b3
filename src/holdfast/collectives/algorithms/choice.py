"""Choice of an algorithm: the one that costs least by measured links, or compression.

All members measure, and the slowest counts for each of them, so that all choose the same.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from holdfast.collectives.algorithms import halving, hierarchical, parameter_server, ring
from holdfast.collectives.algorithms.compressed_sums import BETWEEN_HOSTS
from holdfast.collectives.algorithms.cost import Fabric, LinkSpeed, cost, tree_cost
from holdfast.collectives.algorithms.links import Algorithm, Links, Ranges
from holdfast.collectives.barrier_tags import ReduceTag
from holdfast.collectives.group import Group

TREE: Final = "tree"
"""The exact tree, which adds block by block and needs no links."""
AUTO: Final = "auto"
NONE: Final = "none"
"""No compression."""
ALGORITHMS: Final = MappingProxyType[str, Algorithm](
    {
        "ring": ring.all_reduce,
        "halving": halving.all_reduce,
        "hierarchical": hierarchical.all_reduce,
        "parameter-server": parameter_server.all_reduce,
    }
)
"""The algorithms by name, as the values of the job key `collective`."""

PROBES: Final = 4
"""Measurements of a link; the fastest counts, since other processes only slow it down."""
PROBE_BYTES: Final = 256 << 10
"""Size of a long message."""
_TIMES: Final = struct.Struct("=4d")


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The algorithm that was chosen, and why.

    Attributes:
        name: TREE, a name from ALGORITHMS, or a method of compression.
        costs: Predicted seconds by name.
        fabric: The links that were measured.
        size_bytes: Size of the vector.
        ratio: Factor by which compression shrinks a message.
    """

    name: str
    costs: Mapping[str, float]
    fabric: Fabric
    size_bytes: int
    ratio: float = 1.0

    def fields(self) -> dict[str, object]:
        """The fields of an event: what was chosen, what each would cost, and by which links."""
        predicted_ms = {name: round(1e3 * each, 3) for name, each in self.costs.items()}
        listed = ", ".join(f"{name} {each} ms" for name, each in predicted_ms.items())
        links = {"near": self.fabric.near}
        if len(self.fabric.hosts) > 1:
            links["far"] = self.fabric.far
        fewer = "" if self.ratio == 1 else f"; hosts send {self.ratio:.2f} times fewer bytes"
        return {
            "collective": self.name,
            "reason": f"{self.size_bytes:,} bytes are predicted to take {listed}{fewer}",
            "ratio": round(self.ratio, 2),
            "predicted_ms": predicted_ms,
            "latency_us": {name: round(1e6 * each.latency_s, 1) for name, each in links.items()},
            "gb_per_s": {
                name: round(1e-9 / each.byte_s, 2) if each.byte_s else None
                for name, each in links.items()
            },
        }


def choose(fabric: Fabric, size_bytes: int, most_sums: int) -> Chosen:
    """Choose what costs least.

    Args:
        fabric: The links.
        size_bytes: Size of the vector.
        most_sums: Partial sums that a host passes on at most, in the tree.
    """
    costs = {TREE: tree_cost(size_bytes, fabric, most_sums)}
    costs |= {name: cost(algorithm, size_bytes, fabric) for name, algorithm in ALGORITHMS.items()}
    name = min(costs, key=costs.__getitem__)
    return Chosen(name=name, costs=costs, fabric=fabric, size_bytes=size_bytes)


def compressed(method: str, fabric: Fabric, size_bytes: int, ratio: float) -> Chosen:
    """Compression, which a job has chosen, and what it saves.

    Args:
        method: Its name.
        fabric: The links.
        size_bytes: Size of the vector.
        ratio: Factor by which compression shrinks a message.
    """
    far = LinkSpeed(latency_s=fabric.far.latency_s, byte_s=fabric.far.byte_s / ratio)
    costs = {
        method: cost(BETWEEN_HOSTS, size_bytes, replace(fabric, far=far)),
        NONE: cost(BETWEEN_HOSTS, size_bytes, fabric),
    }
    return Chosen(name=method, costs=costs, fabric=fabric, size_bytes=size_bytes, ratio=ratio)


def measure(group: Group, links: Links, num_elements: int, item_bytes: int, step: int) -> Fabric:
    """Measure the links. All members call this; it overwrites their vectors.

    Args:
        group: The workers.
        links: Links of this member, which do not compress.
        num_elements, item_bytes: Elements of the vector, and bytes of one.
        step: Steps committed.

    Raises:
        Aborted: The generation is over.
        HoldfastError: It took too long.
    """
    probe = range(min(num_elements, PROBE_BYTES // item_bytes))
    circles = [_neighbours(links, is_near=is_near) for is_near in (True, False)]
    seconds = [
        _probe_s(links, peers, elements) for peers in circles for elements in (probe[:1], probe)
    ]
    payloads = group.gather(ReduceTag.CHOICE, step, _TIMES.pack(*seconds))
    times = zip(*map(_TIMES.unpack, payloads), strict=True)
    near_short_s, near_s, far_short_s, far_s = (max(each) for each in times)
    probe_bytes = len(probe) * item_bytes
    return Fabric(
        hosts=links.hosts,
        near=_speed(near_short_s, near_s, probe_bytes),
        far=_speed(far_short_s, far_s, probe_bytes),
    )


def _neighbours(links: Links, *, is_near: bool) -> tuple[int, int] | None:
    """The members that this one sends to and receives from in a probe: around its host, or around
    the first members of all hosts; None if it only takes part.
    """
    host = next(each for each in links.hosts if links.member in each)
    circle = list(host) if is_near else [each[0] for each in links.hosts]
    if links.member not in circle or len(circle) == 1:
        return None
    at = circle.index(links.member)
    return circle[(at + 1) % len(circle)], circle[at - 1]


def _probe_s(links: Links, peers: tuple[int, int] | None, elements: range) -> float:
    """Seconds of a round in which every member sends `elements`."""
    sends: Ranges = {} if peers is None else {peers[0]: elements}
    receives: Ranges = {} if peers is None else {peers[1]: elements}
    least = float("inf")
    for _ in range(PROBES):
        began = time.perf_counter()
        links.exchange(sends, receives, add=False)
        least = min(least, time.perf_counter() - began)
    links.finish()
    return 0.0 if peers is None else least


def _speed(short_s: float, long_s: float, size_bytes: int) -> LinkSpeed:
    byte_s = max(0.0, long_s - short_s) / size_bytes if size_bytes else 0.0
    return LinkSpeed(latency_s=short_s, byte_s=byte_s)
