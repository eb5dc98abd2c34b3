"""The button that stops the run: what it offers, the question before it, and its end."""

from __future__ import annotations

from typing import Final

import streamlit as st

from holdfast.errors import HoldfastError
from holdfast.views.dashboard.access import login
from holdfast.views.dashboard.link import Link
from holdfast.views.dashboard.live import LiveRuns
from holdfast.views.dashboard.markup import text
from holdfast.views.dashboard.stopping import Stop

_WORDS: Final = "Stop and checkpoint"


def draw(runs: LiveRuns, link: Link, every_s: float, *, may_stop: bool) -> None:
    """Draw the button, unless the run has ended.

    Args:
        runs: The runs.
        link: What the page shows.
        every_s: How often the state of the run is looked at.
        may_stop: Whether the visitor has shown the token.
    """
    state = runs.stop_state(link.run)
    st.fragment(_watch, run_every=every_s)(runs, link.run, state)
    if state is not Stop.OVER:
        st.fragment(_button)(runs, link, state, may_stop)  # a click draws no panel again


def _button(runs: LiveRuns, link: Link, state: Stop, may_stop: bool) -> None:
    is_clicked = st.button(
        "Stopping…" if state is Stop.REQUESTED else _WORDS,
        disabled=state is not Stop.OFFERED,
        help="Another host runs it: use `holdfast stop` there." * (state is Stop.ELSEWHERE),
        key="stop_button",
    )
    if is_clicked:
        st.dialog(_WORDS)(_confirm if may_stop else _ask_for_token)(runs, link)


def _watch(runs: LiveRuns, run: str, drawn: Stop) -> None:
    if runs.stop_state(run) is not drawn:
        st.rerun()


def _confirm(runs: LiveRuns, link: Link) -> None:
    st.html(
        f"<p>Stop <b>{text(link.run)}</b> after this step and write a checkpoint?</p>"
        '<p class="dim">--resume continues it from there.</p>'
    )
    with st.container(horizontal=True, key="answers"):
        if st.button("Stop", type="primary"):
            try:
                runs.request_stop(link.run)
            except HoldfastError as error:
                st.html(f"<p>{text(error)}</p>")
                return
            st.rerun()
        if st.button("Cancel"):
            st.rerun()


def _ask_for_token(runs: LiveRuns, link: Link) -> None:
    del runs  # who has not shown the token stops none
    target = text(login.with_query(login.PATH, list(link.query().items())))
    st.html(
        "<p>Others on this machine can see this page too, so stopping a run takes the token: open "
        "the link that <code>holdfast dashboard</code> printed, or "
        f'<a href="{target}" target="_self">enter the token</a>.</p>'
    )
