"""The dashboard of large runs in a browser: a million steps, and a thousand workers."""

import fcntl
import os
import shutil
import subprocess
import time

import pytest

pytest.importorskip("streamlit")

from large_runs import write_run
from test_dashboard import TIMEOUT_S, command, needs_browser

from holdfast.record.run_record import RunRecord
from holdfast.views.dashboard import page, theme
from holdfast.views.dashboard.live import SLICE_S
from holdfast.views.dashboard.view import View

FIRST_PAINT_S, REFRESH_S = 3.0, 1.0
SIZES = [(1_000_000, 4), (400, 1000)]
IDLE_LOAD = 0.5
"""Of a core: acceptance times are compared on an idle machine only."""
SEVERAL_CHARTS = "document.querySelectorAll('.js-plotly-plot .xy').length > 3"

ALL_IS_READ = "!document.querySelector('.pill').textContent.includes('Reading')"


@pytest.fixture(scope="module", params=SIZES, ids=["steps", "workers"])
def large_run(request, tmp_path_factory):
    """A run that trains: a process holds its directory."""
    steps, workers = request.param
    path = tmp_path_factory.mktemp("runs") / "large"
    write_run(path, steps=steps, workers=workers, until=time.time())
    with (path / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield path
    shutil.rmtree(path)  # half a gigabyte


@pytest.mark.slow
@pytest.mark.soak
def test_a_large_run_is_drawn_in_less_than_a_core(large_run):
    record = RunRecord(large_run)
    a_second = 0.0
    for name, panel in page.PANELS.items():
        for axis in ("time", "step"):  # the time that is shown last counts
            began = time.process_time()
            found = panel(View(record=record, now=time.time(), colors=theme.DARK, axis=axis))
            if found.figure is not None:
                assert len(found.figure.to_json()) < 1 << 19
            spent = time.process_time() - began
            assert spent < REFRESH_S, name
        a_second += spent / (page.FAST_S if name in page.FAST else page.SLOW_S)
    assert a_second < 1


@pytest.mark.slow
@pytest.mark.soak
def test_a_long_run_is_read_in_slices(large_run):
    record, calls = RunRecord(large_run, SLICE_S), 1
    first = len(record.steps)
    assert first > 0
    while record.read_share < 1:
        before = record.read_share
        record.refresh()
        assert record.read_share > before
        calls += 1
    whole = RunRecord(large_run)
    assert len(record.steps) == len(whole.steps)
    assert record.goodput().seconds == whole.goodput().seconds
    if len(whole.steps) == SIZES[0][0]:
        assert calls > 3
        assert first < len(whole.steps)


@pytest.mark.slow
@pytest.mark.soak
@needs_browser
def test_the_first_paint_of_a_large_run(large_run):
    sync_api = pytest.importorskip("playwright.sync_api")
    is_idle = os.getloadavg()[0] < IDLE_LOAD * (os.cpu_count() or 1)
    words = ("dashboard", str(large_run), "--port", "0", "--no-browser")
    with (
        command(*words, cwd=large_run, stdout=subprocess.PIPE) as served,
        sync_api.sync_playwright() as playwright,
    ):
        url = served.stdout.readline().split(" at ")[1].split(";")[0]
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"))
        for visit in ("cold", "warm"):
            visitor = browser.new_page(viewport={"width": 1280, "height": 1800})
            visitor.set_default_timeout(1000 * TIMEOUT_S)
            began = time.monotonic()
            visitor.goto(url)
            visitor.wait_for_selector(".kpi")
            figures_s = time.monotonic() - began
            visitor.wait_for_function(SEVERAL_CHARTS)
            charts_s = time.monotonic() - began
            print(f"{visit}: figures after {figures_s:.2f} s, charts after {charts_s:.2f} s")
            assert figures_s < FIRST_PAINT_S or not is_idle
            visitor.wait_for_function(ALL_IS_READ)
            read_s = time.monotonic() - began
            print(f"{visit}: all steps after {read_s:.2f} s")
            assert visitor.locator(".stException").count() == 0
            visitor.close()
        browser.close()
