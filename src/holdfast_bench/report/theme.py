"""Theme: colors, marks and fonts of the figures and the page, light and dark.

Every light color is unique: in the page's figures each becomes `var(--token)`, so that one picture
serves both themes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
from matplotlib import font_manager

from holdfast.views.dashboard import theme as dashboard

Tokens = Mapping[str, str]

FONTS: Final = Path(__file__).parent / "fonts"
_SHARED: Final = (
    "panel", "bg", "inset", "line", "grid", "ink", "ink2", "ink3", "kelp", "amber", "red", "blue",
)  # fmt: skip
"""Surfaces, text and status colors of the dashboard."""


def _shared(colors: dashboard.Colors) -> dict[str, str]:
    return {name: getattr(colors, name) for name in _SHARED}


LIGHT: Final[dict[str, str]] = {
    **_shared(dashboard.LIGHT),
    "holdfast": "#6D8D24", "torchrun": "#15538F", "torchft": "#A77BC8", "ray": "#7A4310",
    "ddp": "#3E4F4B", "published": "#6A7D79",
    "detect": "#B3352B", "restart": "#C77A12", "init": "#EBC583", "state": "#2A74BA",
    "first": "#6C8D24", "rest": "#B4C1BE",
    "kelp-tint": "#DCE6C6", "red-tint": "#F6DEDB", "amber-tint": "#F8EBD6",
}  # fmt: skip
DARK: Final[dict[str, str]] = {
    **_shared(dashboard.DARK),
    "holdfast": "#A9C45F", "torchrun": "#5B9BE0", "torchft": "#D9BDF0", "ray": "#B8713A",
    "ddp": "#7C918E", "published": "#7F9490",
    "detect": "#F27B73", "restart": "#E8A33E", "init": "#7E622F", "state": "#4A8FD8",
    "first": "#A8C45E", "rest": "#5E7073",
    "kelp-tint": "#3A4A26", "red-tint": "#3D2829", "amber-tint": "#2E2818",
}  # fmt: skip
THEMES: Final = {"light": LIGHT, "dark": DARK}

_FAMILIES: Final = (
    ("Holdfast Sans", 400, "HoldfastSans-Regular.ttf"),
    ("Holdfast Sans", 600, "HoldfastSans-SemiBold.ttf"),
    ("Holdfast Mono", 400, "HoldfastMono-Regular.ttf"),
)


def font_files() -> Iterator[tuple[str, int, Path]]:
    """The family, the weight and the file of each font."""
    for family, weight, name in _FAMILIES:
        yield family, weight, FONTS / name


def color_of(system: str) -> str:
    """The token of a system's color."""
    for start, token in (
        ("holdfast", "holdfast"),
        ("torchrun", "torchrun"),
        ("torchft", "torchft"),
        ("Ray Train", "ray"),
    ):
        if system.startswith(start):
            return token
    return "ddp"


@contextmanager
def style(tokens: Tokens) -> Iterator[None]:
    """Draw with these colors within the context."""
    for _, _, path in font_files():
        font_manager.fontManager.addfont(str(path))
    with mpl.rc_context(_settings(tokens)):
        yield


def _settings(t: Tokens) -> Any:
    """100 px of the page are an inch; sizes in points are 0.72 of those in px."""
    return {
        "figure.dpi": 100, "savefig.dpi": 200,
        "figure.facecolor": t["panel"], "savefig.facecolor": t["panel"],
        "font.family": "sans-serif", "font.sans-serif": ["Holdfast Sans", "DejaVu Sans"],
        "font.monospace": ["Holdfast Mono", "DejaVu Sans Mono"], "font.size": 8.64,
        "text.color": t["ink"], "axes.facecolor": t["panel"], "axes.edgecolor": t["line"],
        "axes.labelcolor": t["ink3"], "axes.spines.top": False, "axes.spines.right": False,
        "axes.spines.left": False, "axes.spines.bottom": False, "axes.axisbelow": True,
        "axes.grid": True, "axes.grid.axis": "y", "grid.color": t["grid"], "grid.linewidth": 0.72,
        "xtick.color": t["ink3"], "ytick.color": t["ink3"],
        "xtick.labelsize": 8.64, "ytick.labelsize": 8.64,
        "xtick.major.size": 0, "ytick.major.size": 0, "xtick.minor.size": 0, "ytick.minor.size": 0,
        "xtick.major.pad": 5, "ytick.major.pad": 6, "ytick.alignment": "center",
        "lines.linewidth": 1.44, "lines.markersize": 5, "lines.markeredgewidth": 1.1,
        "lines.solid_capstyle": "round", "patch.linewidth": 0.72, "patch.edgecolor": t["panel"],
        "hatch.linewidth": 0.9, "legend.frameon": False,
        "svg.fonttype": "none", "svg.hashsalt": "holdfast",
    }  # fmt: skip
