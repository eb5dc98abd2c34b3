"""The dashboard in a browser, while a run trains and one of its workers is killed."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.cli.observe import dashboard
from holdfast.errors import JobError

PACED = Path(__file__).parents[1] / "runs" / "paced_tasks.py"
HOLDFAST = Path(sys.executable).with_name("holdfast")
TIMEOUT_S = 120
needs_browser = pytest.mark.skipif(
    shutil.which("chromium") is None, reason="needs Debian's chromium"
)


@contextmanager
def command(*words, cwd, **more):
    """A command that runs while the block does."""
    with subprocess.Popen([HOLDFAST, *words], cwd=cwd, text=True, **more) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                raise


def wait_for(found):
    deadline = time.monotonic() + TIMEOUT_S
    while not (value := found()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return value


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.slow
@needs_browser
def test_a_live_run_in_the_browser(tmp_path):
    sync_api = pytest.importorskip("playwright.sync_api")
    run, silent = tmp_path / "runs" / "live", {"stdout": subprocess.DEVNULL}
    job = (
        "train", f"{PACED}:main", "workers=2", "shards=2", "checkpoint.every_steps=20",
        "params.hurry=never", "params.steps=10000", "--run", "runs/live",
    )  # fmt: skip
    page_of = ("dashboard", "runs", "--port", "0", "--no-browser")
    (tmp_path / "runs").mkdir()
    with (
        command(*job, cwd=tmp_path, **silent) as training,
        command(*page_of, cwd=tmp_path, stdout=subprocess.PIPE) as served,
        sync_api.sync_playwright() as playwright,
    ):
        url = served.stdout.readline().split(" at ")[1].split(";")[0]
        wait_for(lambda: len(read(run / "metrics.jsonl")) > 3)
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"))
        page = browser.new_page(viewport={"width": 1280, "height": 1800})
        page.set_default_timeout(1000 * TIMEOUT_S)
        said, asked = [], []
        page.on("console", lambda line: said.append(line.text) if line.type == "error" else None)
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(f"{url}/?run=gone&span=1min")
        page.wait_for_selector(".kpi")
        page.locator(".band", has_text="There is no run gone here").first.wait_for()
        assert page.get_by_role("radio", name="1 min").is_checked()
        step = "Number(document.querySelector('.kpi .v').firstChild.textContent.replace(',', ''))"
        shown = page.evaluate(step)
        page.wait_for_function(f"{step} > {shown}")
        kill_a_worker(run)
        table = page.locator(".st-key-p_timeline td", has_text="rank 1 killed by SIGKILL")
        table.first.wait_for()  # a panel that is drawn again is there twice for a moment
        page.locator(".st-key-p_timeline", has_text="1 of 1 recovered").first.wait_for()
        page.locator(".st-key-p_report .wf", has_text="first step").first.wait_for()
        tag = page.locator(".st-key-p_timeline .annotation-text", has_text="1")
        tag.first.wait_for(state="attached")  # charts follow the table after a second or two
        page.get_by_role("radio", name="Step").click()
        page.locator(".st-key-p_loss .js-plotly-plot").first.wait_for()
        assert page.locator(".stException").count() == 0
        page.wait_for_url("**/?run=live&axis=step&span=1min")
        training.send_signal(signal.SIGTERM)
        page.locator(".pill", has_text="Stopped").first.wait_for()
        assert page.get_by_role("radio", name="Step").is_checked()
        assert said == []
        assert {request for request in asked if not is_local(request, url)} == set()
        assert training.wait(TIMEOUT_S) == 130
        assert (run / "checkpoints" / f"step-{last_step(run):08}" / "manifest.json").exists()
        stopped_after = last_step(run)
        with command(*job, "--resume", cwd=tmp_path, **silent):
            wait_for(lambda: last_step(run) > stopped_after)
            page.locator(".pill", has_text="Running").first.wait_for()
        browser.close()
    with socket.socket() as probe:  # nothing is left that listens
        assert probe.connect_ex(("127.0.0.1", int(url.rpartition(":")[2]))) != 0


def is_local(request, url):
    return request.startswith((url, url.replace("http", "ws", 1), "data:", "blob:"))


def last_step(run):
    return read(run / "metrics.jsonl")[-1]["step"]


def kill_a_worker(run):
    started = [each for each in read(run / "events.jsonl") if each["event"] == "worker-started"]
    os.kill(next(each["pid"] for each in started if each["rank"] == 1), signal.SIGKILL)


def test_what_cannot_be_served_is_refused(tmp_path):
    with pytest.raises(JobError, match="no directory"):
        dashboard.dashboard(tmp_path / "absent")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(JobError, match="in use"):
            dashboard.dashboard(tmp_path, port=taken.getsockname()[1])
