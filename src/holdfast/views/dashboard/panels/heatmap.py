"""Heat map: the utilization of many devices over time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import plotly.graph_objects as go

from holdfast.views.dashboard.charts import HEIGHT, Chart
from holdfast.views.dashboard.theme import mixed
from holdfast.views.dashboard.view import View

ROWS: Final = 64
"""Most rows of a heat map; of more devices, neighbors share one."""
COLUMNS: Final = 120
_NAMES: Final = 5
"""So many rows have their name next to them, at most."""
_LEFT: Final = 84

Numbers = npt.NDArray[np.float64]
Measured = tuple[str, Sequence[float], Sequence[float | None]]
"""The name of a device, when it was sampled, Unix time, seconds, and its utilization, 0 to 1."""


def heatmap_of(view: View, devices: Sequence[Measured]) -> tuple[go.Figure, int]:
    """The heat map, and how many devices share a row: its color is that of the least used."""
    pooled = -(-len(devices) // ROWS)
    first = max(view.begin, min(at[0] for _, at, _ in devices))
    edges = np.linspace(first, max(view.drawn_until, first + 1e-3), COLUMNS + 1)
    rows = _binned(edges, devices)
    pools = [rows[place : place + pooled] for place in range(0, len(rows), pooled)]
    values = np.array([np.fmin.reduce(pool, axis=0) for pool in pools])
    chart = Chart(view, height=HEIGHT, left=_LEFT)
    names = [devices[place * pooled][0] for place in range(len(pools))]
    every = -(-len(names) // _NAMES)
    chart.layout["yaxis"] |= {
        "range": [len(names) - 0.5, -0.5], "showgrid": False, "ticksuffix": "",
        "tickvals": list(range(0, len(names), every)),
        "ticktext": [f"{name}  " for name in names[::every]],
    }  # fmt: skip
    colors = view.colors
    middle = mixed(colors.inset, colors.kelp_fill, 0.4)
    chart.traces.append(
        {
            "type": "heatmap", "x": view.x(((edges[1:] + edges[:-1]) / 2).tolist()),
            "z": np.round(100 * values), "zmin": 0, "zmax": 100, "showscale": False,
            "colorscale": [[0, colors.inset], [0.5, middle], [1, colors.kelp_fill]],
            "customdata": [[name] * COLUMNS for name in names],
            "hovertemplate": "%{customdata}: %{z} %<extra></extra>", "hoverongaps": False,
        }
    )  # fmt: skip
    chart.layout["hovermode"] = "closest"
    chart.add_marks()
    return chart.figure(), pooled


def _binned(edges: Numbers, devices: Sequence[Measured]) -> Numbers:
    """The mean of what was measured of each device between two edges; nan where nothing was."""
    columns = len(edges) - 1
    values = np.concatenate([np.array(used, dtype=float) for _, _, used in devices])
    at = np.concatenate([np.array(at) for _, at, _ in devices])
    rows = np.repeat(np.arange(len(devices)), [len(used) for _, _, used in devices])
    places = np.minimum(np.searchsorted(edges, at, side="right") - 1, columns - 1)
    inside = ~np.isnan(values) & (places >= 0)
    cells = rows[inside] * columns + places[inside]
    counts = np.bincount(cells, minlength=len(devices) * columns)
    sums = np.bincount(cells, values[inside], minlength=len(devices) * columns)
    mean = np.divide(sums, counts, out=np.full(len(sums), np.nan), where=counts > 0)
    means: Numbers = mean.reshape(len(devices), columns)
    usual_s = float(np.median(np.diff(devices[0][1]))) if len(devices[0][1]) > 1 else 0.0
    for _ in range(int(usual_s / (edges[1] - edges[0]))):  # a sample holds until the next
        before = np.roll(means, 1, axis=1)
        before[:, 0] = np.nan
        means = np.where(np.isnan(means), before, means)
    return means
