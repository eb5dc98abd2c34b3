"""The page, as Streamlit runs it: once for each visit, and each panel again and again."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import streamlit as st

from holdfast.dashboard import theme
from holdfast.dashboard.live import LiveRuns
from holdfast.dashboard.markup import Panel
from holdfast.dashboard.page import FAST, FOOTER, PANELS, SLOW_S, brand, panel_error
from holdfast.dashboard.panels import summary
from holdfast.dashboard.view import View
from holdfast.errors import HoldfastError

FAST_S = 1
"""How often what changes with each step is drawn again; see `page.SLOW_S` for the rest."""


def main() -> None:
    """Draw the page."""
    st.set_page_config(page_title="holdfast", layout="wide", initial_sidebar_state="collapsed")
    mode = "light" if st.context.theme.type == "light" else "dark"
    st.html(theme.style(mode))
    runs = _runs(Path(sys.argv[1]))
    names = runs.names()
    if not names:
        st.html('<p class="none">No run yet. It appears here once it has begun.</p>')
        st.fragment(lambda: st.rerun() if runs.names() else None, run_every=FAST_S)()
        return
    top = st.container(key="top")
    with top:
        st.html(brand(mode))
        with st.container(key="run_picker"):
            run = st.selectbox("Run", names, label_visibility="collapsed", key="run")
        state = st.container(key="state")
        with st.container(key="axis"):
            axis = st.segmented_control(
                "Horizontal axis", ["Time", "Step"], default="Time", key="axis_choice",
                label_visibility="collapsed",
            )  # fmt: skip
    compared = st.session_state.get("compared")

    def draw(name: str, panel: Callable[[View], Panel]) -> None:
        """Draw one panel of the run as it is now."""
        with runs.reading(run, compared if compared != run else None) as (record, other):
            view = View(
                record=record, now=time.time(), colors=theme.colors(mode),
                axis="step" if axis == "Step" else "time", compared=other,
            )  # fmt: skip
            try:
                found = panel(view)
            except (HoldfastError, ArithmeticError, LookupError, TypeError, ValueError) as error:
                found = panel_error(name, error)
        if found.head:
            st.html(found.head)
        if found.figure is not None:
            st.plotly_chart(
                found.figure, theme=None, key=f"chart_{name}", width="stretch",
                config={"displayModeBar": False, "displaylogo": False},
            )  # fmt: skip
        if found.body or not found.head:
            st.html(found.body or "<span></span>")

    with state:
        st.fragment(lambda: st.html(_pill(runs, run, mode)), run_every=FAST_S)()
    with st.container(key="grid"):
        for name, panel in PANELS.items():
            with st.container(key=name):
                every = FAST_S if name in FAST else SLOW_S
                st.fragment(draw, run_every=every)(name, panel)
    st.html(FOOTER)


def _pill(runs: LiveRuns, run: str, mode: theme.Mode) -> str:
    with runs.reading(run, None) as (record, _):
        return summary.pill(View(record=record, now=time.time(), colors=theme.colors(mode)))


@st.cache_resource(show_spinner=False)
def _runs(path: Path) -> LiveRuns:
    """The runs that all visits share."""
    return LiveRuns(path)


main()
