"""Theme: the colors of the dashboard, light and dark, for its style sheet and its charts."""

from __future__ import annotations

from dataclasses import dataclass, fields
from importlib import resources
from typing import Final, Literal

Mode = Literal["light", "dark"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Colors:
    """The colors of one mode; each is a variable of the style sheet.

    Attributes:
        bg, panel, inset, line, grid: Surfaces, borders and grid lines.
        ink, ink2, ink3: Text, from the strongest to the faintest.
        kelp, amber, red, blue: Healthy, act, failure, finished: words and icons.
        kelp_fill, amber_fill: Colors of lines and areas.
        cmp: A compared run.
        w0, w1, w2, w3: Workers: the hue is the host's, the lightness the rank's.
        data, fwd, bwd, reduce, wait, opt, ckpt: The phases of a step.
        loss2, loss3: Shades of red, for what failures cost.
    """

    bg: str
    panel: str
    inset: str
    line: str
    grid: str
    ink: str
    ink2: str
    ink3: str
    kelp: str
    amber: str
    red: str
    blue: str
    kelp_fill: str
    amber_fill: str
    cmp: str
    w0: str
    w1: str
    w2: str
    w3: str
    data: str
    fwd: str
    bwd: str
    reduce: str
    wait: str
    opt: str
    ckpt: str
    loss2: str
    loss3: str


LIGHT: Final = Colors(
    bg="#F3F6F4", panel="#FFFFFF", inset="#EBF1EE", line="#D6E0DC", grid="#E7EDEA",
    ink="#14211F", ink2="#445854", ink3="#586B67",
    kelp="#4E6A17", amber="#8A5700", red="#B3342B", blue="#1C66A8",
    kelp_fill="#6D8D24", amber_fill="#C77A12", cmp="#50645F",
    w0="#15538F", w1="#4A97D8", w2="#6F5208", w3="#B39025",
    data="#E8A33D", fwd="#6F9440", bwd="#3E550F", reduce="#2A74BA", wait="#B4C1BE", opt="#C2DB95",
    ckpt="#6B3F94", loss2="#CE7B75", loss3="#E4B8B5",
)  # fmt: skip
DARK: Final = Colors(
    bg="#0B1315", panel="#101B1E", inset="#17262A", line="#213337", grid="#1B2B2F",
    ink="#E6EFED", ink2="#A9BBB8", ink3="#8A9F9C",
    kelp="#A9C45E", amber="#E8A33D", red="#F27B72", blue="#7DB7EC",
    kelp_fill="#A9C45E", amber_fill="#E8A33D", cmp="#A9BBB8",
    w0="#4A8FD8", w1="#A5D0F7", w2="#C9A551", w3="#EBDDB0",
    data="#F2A541", fwd="#6F9440", bwd="#456128", reduce="#4A8FD8", wait="#8FA1A5", opt="#CFE5A6",
    ckpt="#C7A7E0", loss2="#A35955", loss3="#5F3D3C",
)  # fmt: skip

FONT: Final = '"Source Sans", sans-serif'
"""Comes with Streamlit."""


def colors(mode: Mode) -> Colors:
    """The colors of a mode."""
    return LIGHT if mode == "light" else DARK


def faded(color: str, opacity: float) -> str:
    """A color of the form `#RRGGBB` that lets what is behind it through."""
    red, green, blue = _parts(color)
    return f"rgba({red},{green},{blue},{opacity})"


def mixed(first: str, last: str, share: float) -> str:
    """A color between two of the form `#RRGGBB`.

    Args:
        first, last: The colors.
        share: Part of the second, 0 to 1.
    """
    pairs = zip(_parts(first), _parts(last), strict=True)
    return "#" + "".join(f"{round(one + share * (two - one)):02X}" for one, two in pairs)


def _parts(color: str) -> list[int]:
    return [int(color[place : place + 2], 16) for place in (1, 3, 5)]


def style(mode: Mode) -> str:
    """The style sheet, as HTML."""
    chosen = colors(mode)
    variables = "".join(
        f"--{each.name.replace('_', '-')}:{getattr(chosen, each.name)};" for each in fields(chosen)
    )
    sheet = resources.files("holdfast.views.dashboard").joinpath("style.css").read_text("utf-8")
    return f"<style>:root{{color-scheme:{mode};{variables}}}\n{sheet}</style>"


def options() -> dict[str, str | int]:
    """Streamlit's own theme options, so that its parts match the panels."""
    found: dict[str, str | int] = {
        "theme.font": "sans-serif",
        "theme.baseRadius": "6px",
        "theme.baseFontSize": 14,
    }
    for mode, chosen in (("light", LIGHT), ("dark", DARK)):
        found |= {
            f"theme.{mode}.primaryColor": chosen.kelp,
            f"theme.{mode}.backgroundColor": chosen.bg,
            f"theme.{mode}.secondaryBackgroundColor": chosen.panel,
            f"theme.{mode}.textColor": chosen.ink,
            f"theme.{mode}.borderColor": chosen.line,
        }
    return found
