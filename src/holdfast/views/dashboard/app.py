"""The page, as Streamlit runs it: once for each visit, and each panel again and again."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import streamlit as st

from holdfast.views.dashboard import theme
from holdfast.views.dashboard.live import DAMAGED, LiveRuns
from holdfast.views.dashboard.markup import Panel, text
from holdfast.views.dashboard.page import FAST, FAST_S, FOOTER, PANELS, SLOW_S, brand, panel_error
from holdfast.views.dashboard.panels import runs as runs_panel
from holdfast.views.dashboard.panels import summary
from holdfast.views.dashboard.view import AXES, SPANS, Axis, PageLink, View

NO_COMPARISON: Final = "no run"
_CHART: Final = {"displayModeBar": False, "displaylogo": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Choice of a visitor."""

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
    names = found.names(asked=st.query_params.get("run", ""))
    if not names:
        st.html('<p class="none">No run yet. It appears here once it has begun.</p>')
        st.fragment(lambda: st.rerun() if found.names() else None, run_every=FAST_S)()
        return
    _follow_link(names)
    page = _top(found, names, mode)
    with st.container(key="grid"):
        _say_if_absent(page.run)
        for name, panel in PANELS.items():
            with st.container(key=name):
                st.fragment(_draw, run_every=FAST_S if name in FAST else SLOW_S)(page, name, panel)
        with st.container(key="p_runs"):
            _runs(page, names)
    st.html(FOOTER)


def _follow_link(names: list[str]) -> None:
    """Choose what the address says, on arrival and when the visitor goes back to another one."""
    query = st.query_params.to_dict()
    if query != st.session_state.get("query"):
        link = PageLink.parse(query, names)
        asked = query.get("run", link.run)
        st.session_state.update(run=link.run, chosen_axis=link.axis, chosen_span=link.span)
        st.session_state["absent"] = None if asked == link.run else (asked, link.run)


def _say_if_absent(shown: str) -> None:
    """Say that the run of the link is not here, until the visitor chooses another one."""
    match st.session_state.get("absent"):
        case (asked, run) if run == shown:
            words = f"There is no run <b>{text(asked)}</b> here; this is <b>{text(shown)}</b>."
            band = "--c:var(--amber);--f:var(--amber-fill)"
            st.html(f'<div class="hf band" style="{band}"><span>▲</span><p>{words}</p></div>')


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
            axis = _choice("Horizontal axis", "chosen_axis", AXES)
        with st.container(key="span"):
            span = _choice("Range", "chosen_span", SPANS)
        link = PageLink(run=run, axis=axis, span=span)
    st.session_state["query"] = link.query()
    if st.query_params.to_dict() != link.query():
        st.query_params.from_dict(link.query())
    return Page(runs=runs, run=run, mode=mode, axis=AXES[axis], span_s=SPANS[span])


def _choice(label: str, key: str, words: Iterable[str]) -> str:
    chosen = st.segmented_control(
        label, list(words), label_visibility="collapsed", required=True, key=key
    )
    return str(chosen)


def _draw(page: Page, name: str, panel: Callable[[View], Panel]) -> None:
    """Draw one panel; one that fails leaves the others alone."""
    try:
        found = page.shown(panel)
    except DAMAGED as error:
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
    if set(page.runs.names(asked=page.run)) != set(names):
        st.rerun()  # with the new run among the choices
    chosen = st.session_state.get("compared", NO_COMPARISON)
    with page.runs.reading_all(names) as records:
        st.html(runs_panel.table_of(records, page.run, chosen, time.time()))


main()
