"""Draw the picture at the top of the README from two runs: one without a fault and one with a kill.

    holdfast train digits workers=2 epochs=6 --run runs/reference
    holdfast chaos digits workers=2 epochs=6 --fault kill:step=60,rank=1 --run runs/killed
    python docs/images/draw_hero.py runs/reference runs/killed docs/images

Writes hero-light.svg and hero-dark.svg. Texts become paths, because GitHub blocks fonts in SVG.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.font_manager import get_font
from matplotlib.path import Path as Outline
from matplotlib.textpath import TextToPath

from holdfast_bench.report.theme import FONTS

FACES = {
    "regular": "HoldfastSans-Regular.ttf",
    "semibold": "HoldfastSans-SemiBold.ttf",
    "mono": "HoldfastMono-Regular.ttf",
}
WIDTH, HEIGHT = 830, 404
MARK = (
    "M10 1V10M10 8C10 12 7.8 12.6 5.2 14.2C3.2 15.5 2.2 17 2 20.5M10 8C10 12 12.2 12.6 14.8 14.2"
    "C16.8 15.5 17.8 17 18 20.5M10 9C10 13.5 7.7 14.5 7.2 20.5M10 9C10 13.5 12.3 14.5 12.8 20.5"
)
PHASES = ("red", "amber", "sand", "kelp")
"""Colors of the phases of a recovery, in order."""
THEMES = {
    "light": {
        "panel": "#FFFFFF", "inset": "#EBF1EE", "line": "#D6E0DC", "grid": "#E7EDEA",
        "ink": "#14211F", "ink2": "#445854", "ink3": "#586B67",
        "red": "#B3342B", "amber": "#C77A12", "sand": "#EBC583", "kelp": "#6D8D24",
        "name": "#4E6A17", "tint": "#DCE6C6", "rank 0": "#155390", "rank 1": "#4A97D8",
    },
    "dark": {
        "panel": "#101B1E", "inset": "#17262A", "line": "#213337", "grid": "#1B2B2F",
        "ink": "#E6EFED", "ink2": "#A9BBB8", "ink3": "#8A9F9C",
        "red": "#F27B72", "amber": "#E8A33D", "sand": "#7E622F", "kelp": "#A9C45F",
        "name": "#A9C45E", "tint": "#3A4A26", "rank 0": "#4A8FD9", "rank 1": "#A5D0F7",
    },
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """What the picture shows: one recovery, and the same weights with and without it."""

    name: str
    losses: list[float]
    losses_with_fault: list[float]
    recovery: dict[str, Any]
    sha256: str

    @property
    def steps(self) -> int:
        return len(self.losses)

    @property
    def rank(self) -> int:
        return int(self.recovery["causes"][0]["rank"])

    @property
    def title(self) -> str:
        return (
            f"Training loss of {self.name}, {self.steps} steps, with and without a fault: rank "
            f"{self.rank} is killed after step {self.recovery['step']}. The next step commits "
            f"{self.recovery['total_s']:.2f} s later, {self.recovery['recomputed_steps']} steps "
            "are recomputed, and the SHA-256 of all weights is the same."
        )


def read(reference: Path, faulted: Path) -> Story:
    """The story of two finished runs; exits where they do not tell it."""
    digests = [json.loads((run / "result.json").read_text())["weights_sha256"]
               for run in (reference, faulted)]  # fmt: skip
    recoveries = _lines(faulted / "recoveries.jsonl")
    if len(set(digests)) > 1 or len(recoveries) != 1:
        sys.exit("the picture needs two runs with the same weights, and one recovery in the second")
    return Story(
        name=json.loads((reference / "result.json").read_text())["data"],
        losses=_losses(reference),
        losses_with_fault=_losses(faulted),
        recovery=recoveries[0],
        sha256=digests[0],
    )


def _losses(run: Path) -> list[float]:
    by_step = {
        line["step"]: line["loss"] for line in _lines(run / "metrics.jsonl") if "loss" in line
    }
    return [by_step[step] for step in sorted(by_step)]


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


class Canvas:
    """An SVG of fixed size in the making. Every glyph is stored once; texts refer to it."""

    def __init__(self, colors: dict[str, str]) -> None:
        self._colors = colors
        self._glyphs: dict[str, tuple[str, str]] = {}  # by matplotlib's id: our id, outline
        self._body: list[str] = []
        self._layout = TextToPath()

    def rect(
        self,
        x: float,
        y: float,
        wide: float,
        high: float,
        color: str,
        edge: str = "",
        *,
        r: int = 0,
    ) -> None:
        """A rectangle, with rounded corners of radius `r`."""
        rest = f' rx="{r}"' * bool(r) + f' stroke="{self._colors.get(edge)}"' * bool(edge)
        self._body.append(
            f'<rect x="{x:.4g}" y="{y:.4g}" width="{wide:.4g}" height="{high:.4g}" '
            f'fill="{self._colors[color]}"{rest}/>'
        )

    def stroke(self, path: str, color: str, width: float, place: str = "") -> None:
        """A line along an SVG path."""
        at = f' transform="{place}"' * bool(place)
        self._body.append(
            f'<path d="{path}" fill="none" stroke="{self._colors[color]}" stroke-width="{width}" '
            f'stroke-linecap="round" stroke-linejoin="round"{at}/>'
        )

    def cross(self, x: float, y: float, color: str) -> None:
        """A small ✕."""
        self.stroke(f"M{x - 3.5:.4g} {y - 3.5:.4g}l7 7m0-7l-7 7", color, 1.8)

    def text(
        self, x: float, y: float, text: str, color: str, size: float, face: str = "regular", *,
        end: bool = False,
    ) -> float:  # fmt: skip
        """Write on the base line `y`, from `x` or up to it; returns where the text ends."""
        font = get_font(FONTS / FACES[face])
        font.set_size(self._layout.FONT_SCALE, self._layout.DPI)
        placed, outlines, _ = self._layout.get_glyphs_with_font(font, text)
        scale = size / self._layout.FONT_SCALE
        font.set_text(text, 0.0)
        wide = font.get_width_height()[0] / 64 * scale
        left = x - wide if end else x
        uses = []
        for name, at, *_ in placed:
            key = f"{face}{name}"
            self._glyphs.setdefault(key, (f"g{len(self._glyphs)}", _outline(*outlines[name])))
            uses.append(f'<use href="#{self._glyphs[key][0]}" x="{at:.0f}"/>')
        self._body.append(
            f'<g fill="{self._colors[color]}" transform="translate({left:.1f} {y:.1f}) '
            f'scale({scale:.3f} {-scale:.3f})">{"".join(uses)}</g>'
        )
        return left + wide

    def svg(self, title: str) -> str:
        """The whole picture."""
        glyphs = "".join(f'<path id="{name}" d="{path}"/>' for name, path in self._glyphs.values())
        return (
            f'<svg width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
            f'xmlns="http://www.w3.org/2000/svg"><title>{title}</title><defs>{glyphs}</defs>\n'
            + "\n".join(self._body)
            + "\n</svg>\n"
        )


def _outline(vertices: Any, codes: Any) -> str:
    """An SVG path from an outline of matplotlib."""
    letters = {Outline.MOVETO: "M", Outline.LINETO: "L", Outline.CURVE3: "Q", Outline.CURVE4: "C"}
    path = ""
    for points, code in Outline(vertices, codes).iter_segments(simplify=False):
        path += "Z" if code == Outline.CLOSEPOLY else letters[code] + _numbers(points)
    return path


def _numbers(values: Any) -> str:
    return " ".join(f"{value:.0f}" for value in values).replace(" -", "-")


def draw(story: Story, colors: dict[str, str]) -> str:
    """The picture in one theme."""
    canvas = Canvas(colors)
    canvas.rect(1, 1, WIDTH - 2, HEIGHT - 2, "panel", "line", r=12)
    canvas.stroke(MARK, "name", 1.9, "translate(28 24) scale(1.15)")
    canvas.text(60, 46, "holdfast", "ink", 22, "semibold")
    canvas.text(802, 44, f"{story.name} · {story.steps} steps · 2 workers", "ink3", 14, end=True)
    canvas.text(
        28, 90, "A worker is killed. The weights stay bit-identical.", "ink", 27, "semibold"
    )
    _draw_training(canvas, story)
    _draw_cost(canvas, story)
    _draw_weights(canvas, story)
    return canvas.svg(story.title)


def _draw_training(canvas: Canvas, story: Story) -> None:
    """The losses of both runs over the steps, and below them the workers of the second."""
    left, top, wide, high, most = 72, 132, 460, 104, 2.5

    def curve(losses: list[float]) -> str:
        points = (
            (left + wide * (step + 1) / story.steps, top + high * (1 - loss / most))
            for step, loss in enumerate(losses)
        )
        return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)

    canvas.text(28, 120, "training loss", "ink3", 13)
    for value in (0, 1, 2):
        y = top + high * (1 - value / most)
        canvas.stroke(f"M{left} {y:.4g}h{wide}", "grid", 1)
        canvas.text(left - 8, y + 4.5, str(value), "ink3", 13, end=True)
    canvas.stroke(curve(story.losses), "tint", 9)
    canvas.stroke(curve(story.losses_with_fault), "kelp", 2)
    for y, color, width, words in (
        (168, "tint", 9, "fault-free run"),
        (190, "kelp", 2, "with a kill"),
    ):
        canvas.stroke(f"M376 {y}h24", color, width)
        canvas.text(412, y + 4.5, words, "ink2", 14)
    killed = left + wide * story.recovery["step"] / story.steps
    for number, y in ((0, 252), (1, 276)):
        canvas.text(left - 8, y + 11, f"rank {number}", "ink3", 13, end=True)
        canvas.rect(left, y, wide, 13, f"rank {number}")
    lost = (252, 276)[story.rank] + 6.5
    canvas.stroke(f"M{killed:.4g} 130V{lost}", "red", 1.4)
    canvas.rect(killed - 8, 122, 16, 16, "red")
    canvas.cross(killed, 130, "panel")
    canvas.text(killed + 14, 135, f"rank {story.rank} killed after step {story.recovery['step']}",
                "red", 14, "semibold")  # fmt: skip
    canvas.rect(killed - 9, lost - 9, 18, 18, "panel", "red", r=9)
    canvas.cross(killed, lost, "red")
    canvas.text(
        killed + 14, 308, f"new worker, state copied from rank {1 - story.rank}", "ink3", 13
    )


def _draw_cost(canvas: Canvas, story: Story) -> None:
    """How long the recovery took, and what had to be computed again."""
    left, wide, total = 572, 230, story.recovery["total_s"]
    end = canvas.text(left, 160, f"{total:.2f} s", "name", 34, "semibold")
    canvas.text(end + 9, 160, "until the next step", "ink2", 15)
    at: float = left
    phases = zip(PHASES, story.recovery["seconds"].items(), strict=True)
    for number, (color, (phase, seconds)) in enumerate(phases):
        canvas.rect(at, 176, max(1.0, wide * seconds / total - 1.5), 14, color)
        at += wide * seconds / total
        x, y = left + 120 * (number % 2), 214 + 21 * (number // 2)
        canvas.rect(x, y - 9, 9, 9, color)
        canvas.text(x + 15, y, f"{phase} {seconds:.2f} s", "ink2", 14)
    end = canvas.text(left, 284, str(story.recovery["recomputed_steps"]), "name", 34, "semibold")
    canvas.text(end + 9, 284, "steps recomputed", "ink2", 15)


def _draw_weights(canvas: Canvas, story: Story) -> None:
    canvas.rect(16, 316, WIDTH - 32, 72, "inset", r=7)
    for y, words in ((346, "fault-free"), (372, f"rank {story.rank} killed")):
        canvas.text(30, y, words, "ink2", 14)
        canvas.text(122, y, story.sha256, "ink", 13.2, "mono")
    canvas.text(798, 346, "equal SHA-256", "name", 15, "semibold", end=True)
    canvas.text(798, 372, "of all weights", "name", 15, "semibold", end=True)


def main() -> None:
    """Read two runs and write both themes."""
    reference, faulted, target = map(Path, sys.argv[1:])
    story = read(reference, faulted)
    for theme, colors in THEMES.items():
        (target / f"hero-{theme}.svg").write_text(draw(story, colors))
    print(story.title)


if __name__ == "__main__":
    main()
