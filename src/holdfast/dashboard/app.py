"""The page, as Streamlit runs it: once for each visit, and each panel again and again."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import streamlit as st

from holdfast.dashboard import theme
from holdfast.dashboard.live import LiveRuns
from holdfast.dashboard.markup import Panel
from holdfast.dashboard.page import FAST, FAST_S, FOOTER, PANELS, SLOW_S, brand, panel_error
from holdfast.dashboard.panels import runs as runs_panel
from holdfast.dashboard.panels import summary
from holdfast.dashboard.view import Axis, View
from holdfast.errors import HoldfastError

NO_COMPARISON: Final = "no run"
SPANS: Final = {"All": None, "10 min": 600.0, "1 min": 60.0}
"""Of how many of the last seconds the charts are."""
_CHART: Final = {"displayModeBar": False, "displaylogo": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """What a visitor has chosen to see."""

    runs: LiveRuns
    run: str
    mode: theme.Mode
    axis: Axis = "time"
    span_s: float | None = None

    def shown(self, panel: Callable[[View], Panel]) -> Panel:
        """A panel of the run as it is now.

        Raises:
            HoldfastError: The run is no longer there.
        """
        other = st.session_state.get("compared", NO_COMPARISON)
        compared = None if other in (NO_COMPARISON, self.run) else str(other)
        with self.runs.reading(self.run, compared) as (record, against):
            return panel(
                View(
                    record=record, now=time.time(), colors=theme.colors(self.mode),
                    axis=self.axis, span_s=self.span_s, compared=against,
                )
            )  # fmt: skip


def main() -> None:
    """Draw the page."""
    st.set_page_config(page_title="holdfast", layout="wide", initial_sidebar_state="collapsed")
    mode: theme.Mode = "light" if st.context.theme.type == "light" else "dark"
    st.html(theme.style(mode))
    found = st.cache_resource(LiveRuns, show_spinner=False)(Path(sys.argv[1]))
    names = found.names()
    if not names:
        st.html('<p class="none">No run yet. It appears here once it has begun.</p>')
        st.fragment(lambda: st.rerun() if found.names() else None, run_every=FAST_S)()
        return
    page = _top(found, names, mode)
    with st.container(key="grid"):
        for name, panel in PANELS.items():
            with st.container(key=name):
                st.fragment(_draw, run_every=FAST_S if name in FAST else SLOW_S)(page, name, panel)
        with st.container(key="p_runs"):
            _runs(page, names)
    st.html(FOOTER)


def _top(runs: LiveRuns, names: list[str], mode: theme.Mode) -> Page:
    """Draw the header; returns what is chosen in it."""
    with st.container(key="top"):
        st.html(brand(mode))
        with st.container(key="run_picker"):
            run = st.selectbox("Run", names, label_visibility="collapsed", key="run")
        with st.container(key="state"):
            page = Page(runs=runs, run=run, mode=mode)
            st.fragment(_draw, run_every=FAST_S)(page, "state", summary.pill)
        with st.container(key="axis"):
            axis = _choice("Horizontal axis", ["Time", "Step"])
        with st.container(key="span"):
            span = _choice("Range", list(SPANS))
    chosen: Axis = "step" if axis == "Step" else "time"
    return Page(runs=runs, run=run, mode=mode, axis=chosen, span_s=SPANS[span])


def _choice(label: str, words: list[str]) -> str:
    chosen = st.segmented_control(
        label, words, default=words[0], label_visibility="collapsed", required=True
    )
    return str(chosen or words[0])


def _draw(page: Page, name: str, panel: Callable[[View], Panel]) -> None:
    """Draw one panel; one that fails leaves the others alone."""
    try:
        found = page.shown(panel)
    except (HoldfastError, OSError, ArithmeticError, LookupError, TypeError, ValueError) as error:
        found = panel_error(name, error)
    if found.head:
        st.html(found.head)
    if found.figure is not None:
        st.plotly_chart(found.figure, theme=None, key=f"chart_{name}", config=_CHART)
    st.html(found.body or "<span></span>")


def _runs(page: Page, names: list[str]) -> None:
    """Draw the list of runs, with the choice of one to compare with."""
    others = [name for name in names if name != page.run]
    st.html(runs_panel.HEAD)
    with st.container(key="compare"):
        st.selectbox(
            "Compare with", [NO_COMPARISON, *others], key="compared", label_visibility="collapsed"
        )
    st.fragment(_runs_table, run_every=SLOW_S)(page, names)


def _runs_table(page: Page, names: list[str]) -> None:
    if set(page.runs.names()) != set(names):
        st.rerun()  # with the new run among the choices
    chosen = st.session_state.get("compared", NO_COMPARISON)
    with page.runs.reading_all(names) as records:
        st.html(runs_panel.table_of(records, page.run, chosen, time.time()))


main()
