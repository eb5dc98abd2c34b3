"""Time that hosts take to reduce a gradient, compared with gloo over the same links.

The hosts are network namespaces of this machine (root and iproute2), so all share its cores. The
systems take turns, repetition by repetition; `reducing_host` says what they are.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from holdfast.collectives.algorithms.choice import ALGORITHMS
from holdfast.coordinator.authority import Authority
from holdfast.launch.spawn import worker_environment
from holdfast.wire.tls import Role
from holdfast_bench.launch import PeerLaunch, ProcessSpec
from holdfast_bench.on_hosts.namespaces import NET, UNSHAPED, Namespaces, namespaces
from holdfast_bench.on_hosts.reducing_host import METHODS, TAKEN
from holdfast_bench.results.figures import ratio, spread

Row = dict[str, Any]
TIMEOUT_S: Final = 600.0


def measure(
    hosts: int, workers: int, size: int, link: str, repetitions: int
) -> Mapping[str, Sequence[float]]:
    """Seconds of one reduction by system, for each repetition.

    Args:
        hosts: How many.
        workers: Of each host.
        size: Of the gradient, bytes.
        link: The rate of each host's link, such as `1gbit`; or UNSHAPED.
        repetitions: How many.

    Raises:
        HoldfastError: A host failed, or took too long.
    """
    with (
        tempfile.TemporaryDirectory() as folder,
        namespaces(Path(folder), hosts, link) as made,
    ):
        return _run(made, Path(folder), workers, size, repetitions, is_shaped=link != UNSHAPED)


def _run(
    made: Namespaces, folder: Path, workers: int, size: int, repetitions: int, *, is_shaped: bool
) -> Mapping[str, Sequence[float]]:
    options = {
        "hosts": len(made.numbers),
        "workers": workers,
        "size": size,
        "repetitions": repetitions,
        "net": NET,
        "folder": folder,
    }
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    words += ["--stream"] if is_shaped else []
    authority = Authority.create(folder)
    for number in made.numbers:
        credentials = authority.issue(made.name(number), Role.DATA).model_dump_json()
        (folder / f"host-{number - 1}.json").write_text(credentials, encoding="ascii")
    program = [sys.executable, "-m", "holdfast_bench.on_hosts.reducing_host", *words]
    commands = [
        ProcessSpec(
            arguments=made.command(
                number, *program, "--host", number - 1, "--address", made.address(number)
            ),
            environment=worker_environment(),
        )
        for number in made.numbers
    ]
    with PeerLaunch(commands, folder) as launch:
        launch.join(TIMEOUT_S)
    taken: dict[str, list[float]] = json.loads((folder / TAKEN).read_text(encoding="utf-8"))
    return taken


def rows(hosts: int, workers: int, link: str, sizes: Sequence[int], repetitions: int) -> list[Row]:
    """One row per size and system; see `measure`."""
    found = []
    for size in sizes:
        print(f"reduction, {hosts} hosts x {workers}, {in_words(size)}", file=sys.stderr)
        taken = measure(hosts, workers, size, link, repetitions)
        for system, seconds in taken.items():
            row = {"measure": "reduction", "hosts": hosts, "workers": workers, "link": link}
            row |= {"what": in_words(size), "system": system}
            row |= {"ms": spread([1e3 * each for each in seconds], 3)}
            row |= {"speed_of_gloo": ratio(taken["gloo"], seconds)}
            found.append(row | _of_others(system, hosts, taken))
    return found


def _of_others(system: str, hosts: int, taken: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """The times of other systems, where they were measured."""
    found = {}
    if system in METHODS:
        found["speed_of_uncompressed"] = ratio(taken["parameter-server"], taken[system])
    if system == "holdfast" and "order-free" in taken:
        found["time_of_order_free"] = ratio(taken[system], taken["order-free"])
    if (
        system in ("holdfast", *ALGORITHMS) and "stream" in taken
    ):  # which moves the gradient once, one way
        moved = [2 * (hosts - 1) / hosts / seconds for seconds in taken[system]]
        found["of_line"] = ratio(moved, [1 / seconds for seconds in taken["stream"]])
    return found


def in_words(size: int) -> str:
    """A size as people write it."""
    return f"{size >> 20} MB" if size >= 1 << 20 else f"{size >> 10} KB"
