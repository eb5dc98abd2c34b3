"""Drawing: places and texts in px on a figure that is 720 px wide; see `report.theme`."""

from __future__ import annotations

import base64
import html
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator
from PIL import Image

from holdfast_bench.report.theme import LIGHT, Tokens

WIDTH: Final = 720
DASHED: Final = (0, (4, 3))
DOTTED: Final = (0, (1, 2))
_COLORS: Final = 128
_NO_METADATA: Final = {"Date": None, "Creator": None, "Format": None, "Type": None}


def pt(px: float) -> float:
    """Points of a length in px."""
    return px * 0.72


def canvas(height: int) -> Canvas:
    """An empty figure."""
    return Canvas(figsize=(WIDTH / 100, height / 100))


def area(fig: Canvas, left: float, top: float, width: float, height: float, **keys: Any) -> Any:
    """Axes at a place from the top left corner, px."""
    w, h = fig.get_size_inches() * 100
    return fig.add_axes((left / w, 1 - (top + height) / h, width / w, height / h), **keys)


def note(
    fig: Canvas, x: float, y: float, text: str, t: Tokens, color: str = "ink3",
    size: float = 12, weight: int = 400, **keys: Any,
) -> Any:  # fmt: skip
    """A text whose baseline is at `y`."""
    w, h = fig.get_size_inches() * 100
    return fig.text(
        x / w, 1 - y / h, text, color=t[color], fontsize=pt(size), fontweight=weight, **keys
    )


def title(fig: Canvas, x: float, y: float, text: str, t: Tokens) -> Any:
    """The title of a panel."""
    return note(fig, x, y, text, t, "ink", 13, 600)


def box(fig: Canvas, x: float, y: float, width: float, height: float, **keys: Any) -> None:
    """A rectangle."""
    w, h = fig.get_size_inches() * 100
    place = (x / w, 1 - (y + height) / h)
    fig.add_artist(Rectangle(place, width / w, height / h, transform=fig.transFigure, **keys))


def rule(
    fig: Canvas, x0: float, y0: float, x1: float, y1: float, t: Tokens, color: str, width: float
) -> None:
    """A line."""
    w, h = fig.get_size_inches() * 100
    ends = [x0 / w, x1 / w], [1 - y0 / h, 1 - y1 / h]
    fig.add_artist(Line2D(*ends, color=t[color], linewidth=pt(width)))


def foot(fig: Canvas, x: float, text: str, t: Tokens) -> None:
    """A note at the bottom."""
    note(fig, x, fig.get_size_inches()[1] * 100 - 8, text, t)


def width_of(fig: Canvas, text: Any) -> float:
    """The width of a drawn text, px."""
    return float(text.get_window_extent(renderer_of(fig)).width * 100 / fig.dpi)


def renderer_of(fig: Canvas) -> Any:
    """A renderer that measures texts."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    return FigureCanvasAgg(fig).get_renderer()  # type: ignore[no-untyped-call]


def keys(
    fig: Canvas, t: Tokens, x: float, y: float, items: Iterable[tuple[str, str, str | None]]
) -> None:
    """Keys in a row: the color, the text, and a hatch or None."""
    for color, text, hatch in items:
        face = t[color] if hatch is None else "none"
        edge = "none" if hatch is None else t[color]
        box(fig, x, y - 9, 10, 10, facecolor=face, edgecolor=edge, hatch=hatch, linewidth=0.6)
        drawn = note(fig, x + 15, y, text, t, "ink2")
        x += 15 + width_of(fig, drawn) + 16


def log_axis(axis: Any, ticks: Sequence[float], labels: Sequence[str]) -> None:
    """Ticks of a logarithmic axis."""
    axis.set_major_locator(FixedLocator(ticks))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FixedFormatter(labels))


def horizontal(ax: Any) -> None:
    """Grid lines for values on the x axis, and no ticks on the other."""
    ax.grid(axis="x")
    ax.grid(visible=False, axis="y")
    ax.set_yticks([])


def apart(values: Sequence[float], gap: float) -> list[float]:
    """Positions nearest to the values that keep a gap."""
    order = sorted(range(len(values)), key=lambda i: values[i])
    placed = list(values)
    for _ in range(200):
        for a, b in pairwise(order):
            missing = gap - (placed[b] - placed[a])
            if missing > 0:
                placed[a] -= missing / 2
                placed[b] += missing / 2
    return placed


def dot(ax: Any, x: float, y: float, color: str, edge: str, size: float, mark: str = "o") -> None:
    """A mark with an edge, over all lines."""
    width = pt(1.1 if mark == "s" else 1.6)
    look = {"color": color, "markeredgecolor": edge, "markeredgewidth": width, "zorder": 4}
    ax.plot(x, y, mark, markersize=pt(size), **look)


def row_text(
    ax: Any, text: str, y: float, x_px: float, color: str, *, size: float = 12, bold: bool = True
) -> None:
    """A text in the row of `y`: to the left of the axes, or so far to the right of them."""
    x = 0 if x_px < 0 else 1
    where = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", "ha": "right"}
    look = {"color": color, "fontsize": pt(size), "fontweight": 600 if bold else 400}
    ax.annotate(text, (x, y), (pt(x_px), 0), va="center", **where, **look)


def fill(t: Tokens, name: str) -> dict[str, Any]:
    """Fill of a part of a stack."""
    return {"facecolor": t[name], "edgecolor": t["panel"], "linewidth": 0.72}


def png(fig: Canvas) -> bytes:
    """The figure at twice its size, in few colors."""
    drawn = io.BytesIO()
    packed = io.BytesIO()
    fig.savefig(drawn, format="png")
    few = Image.open(drawn).convert("RGB").quantize(_COLORS, dither=Image.Dither.NONE)
    few.save(packed, "PNG", optimize=True)
    return packed.getvalue()


def svg(fig: Canvas, name: str, description: str) -> str:
    """A figure that was drawn with the light theme, as part of a page: texts stay texts, and colors
    are the page's variables.
    """
    out = io.StringIO()
    fig.savefig(out, format="svg", metadata=_NO_METADATA)
    text = out.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(
        r"<metadata>.*?</metadata>|<style[^>]*>.*?</style>|<!--.*?-->", "", text, flags=re.DOTALL
    )
    tokens = {value.lower(): token for token, value in LIGHT.items()}
    text = re.sub(r"#[0-9a-fA-F]{6}\b", lambda m: _variable(m[0], tokens), text)
    text = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', text)
    text = re.sub(r'href="#([^"]+)"', rf'href="#{name}-\1"', text)
    text = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", text)
    text = re.sub(r"<[^>]+>", lambda tag: _shorter(tag[0]), text)
    text = text.replace("'Holdfast Sans', 'DejaVu Sans', sans-serif", "var(--sans)")
    text = re.sub(
        r'<svg [^>]*viewBox="([^"]+)"[^>]*>',
        rf'<svg viewBox="\1" role="img" aria-label="{html.escape(description)}">',
        text,
        count=1,
    ).replace("xlink:href", "href")
    return re.sub(r">\s+<", "><", text)


def colored(svg: str, tokens: Mapping[str, str]) -> str:
    """A picture that stands alone: with the colors of a theme, and a font of the reader."""
    return re.sub(r"var\(--([\w-]+)\)", lambda m: tokens.get(m[1], "sans-serif"), svg)


def embedded(content: bytes, kind: str) -> str:
    """A file as part of a page."""
    return f"data:{kind};base64,{base64.b64encode(content).decode('ascii')}"


def _variable(color: str, tokens: Mapping[str, str]) -> str:
    token = tokens.get(color.lower())
    return color if token is None else f"var(--{token})"


def _shorter(tag: str) -> str:
    """A tag with coordinates of two digits; texts between tags are data."""
    return re.sub(r"scale\([^)]*\)|(\d+\.\d{2})\d+", lambda m: m[1] or m[0], tag)
