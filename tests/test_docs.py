"""Every command in the documentation runs, in the order of the page, on its own files."""

import json
import os
import re
import subprocess
from pathlib import Path
from typing import get_args

import pytest
import yaml

import job_keys
import tour
from holdfast.job.models import Model
from holdfast.job.settings import Optimizer, Schedule

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?://)([^)#]+)")
SOURCE = re.compile(r"\b((?:[\w.]+/)+\w+\.py)\b")
ANCHOR = re.compile(r"\]\((?!https?://)([^)#]*)#([^)]+)\)")


def fences(page):
    return FENCE.findall(page.read_text())


WITH_COMMANDS = [page for page in PAGES if any(kind == "bash" for kind, _ in fences(page))]
TAKE_LONG = {
    "backup.md", "balance.md", "breakdown.md", "chaos.md", "checkpoint-security.md",
    "checkpoints.md", "data.md",
    "doctor.md", "drill.md", "engines.md", "jobs.md", "parallel.md", "profile.md", "qlora.md",
    "record.md",
    "recovery-reports.md", "scripts.md", "tuning.md", "using-weights.md", "your-own-code.md",
}  # fmt: skip


def by_tier(page):
    """A page that takes long belongs to `make soak`, the README and first pages to `test-all`."""
    if page.name in TAKE_LONG:
        return pytest.param(page, marks=pytest.mark.soak)
    is_dear = page.parent.name == "paths" or page.name in (
        "README.md", "collectives.md", "from-pytorch.md", "lightning.md", "transformers.md",
    )  # fmt: skip
    return pytest.param(page, marks=pytest.mark.full if is_dear else ())


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [by_tier(page) for page in WITH_COMMANDS], ids=lambda page: page.name
)
def test_the_commands_of_a_page_run(page, tmp_path, zygote):
    environment = {**os.environ, **zygote.for_shells()}
    for kind, text in fences(page):
        if kind in ("python", "yaml"):
            name = re.match(r"# (\S+)\n", text)
            assert name, f"a block of {page.name} does not say which file it is"
            (tmp_path / name[1]).write_text(text)
        elif kind == "bash":
            done = subprocess.run(
                ["bash", "-euc", text],
                cwd=tmp_path,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_targets_of_make_in_a_page_exist(page):
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for _, text in (fence for fence in fences(page) if fence[0] == "sh"):
        for line in text.splitlines():
            assert line.split()[0] == "make"
            assert line.split()[1] in targets


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in LINK.findall(page.read_text()):
        assert (page.parent / target).exists(), target


def test_the_readme_lists_every_page():
    docs = ROOT / "docs"
    listed = {ROOT / target for target in LINK.findall((ROOT / "README.md").read_text())}
    elsewhere = {docs / "benchmarks" / "report.md", *(docs / "decisions").glob("0*.md")}
    assert {*docs.rglob("*.md")} - listed - elsewhere == set()


def slugs(page):
    """Anchors that GitHub makes of the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    words = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {each.replace(" ", "-") for each in words}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_to_sections_name_a_heading(page):
    for target, anchor in ANCHOR.findall(page.read_text()):
        assert anchor in slugs(page.parent / target if target else page), f"{target}#{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_source_files_named_in_a_page_exist(page):
    named = set(SOURCE.findall(page.read_text())) - {"path/file.py", "path/to/file.py"}
    homes = [ROOT, ROOT / "docs", ROOT / "src", ROOT / "src" / "holdfast"]
    assert {name for name in named if not any((home / name).exists() for home in homes)} == set()
    if page.name in ("step.md", "CONTRIBUTING.md"):  # they show the way of a gradient
        assert len(named) > 10


def test_the_tour_is_that_of_the_packages():
    assert tour.PAGE.read_text() == tour.page(), "run python tests/tour.py"


def test_the_page_of_job_keys_is_that_of_the_fields():
    assert job_keys.PAGE.read_text() == job_keys.page(), "run python tests/job_keys.py"


def rows(page, column):
    """The rows of the table whose first column is `column`."""
    _, found, rest = page.read_text().partition(f"| `{column}` |")
    assert found, column
    return [line.strip("| ").split(" | ") for line in rest.partition("\n\n")[0].splitlines()[2:]]


NAMED = {"model": Model, "optimizer": Optimizer, "schedule": Schedule}
"""Job keys whose `name` decides which further keys there are."""


@pytest.mark.parametrize("key", NAMED)
def test_the_page_of_jobs_lists_further_keys_with_their_defaults(key):
    defaults = {
        name: {key: field.default for key, field in spec.model_fields.items() if key != "name"}
        for spec in get_args(get_args(NAMED[key])[0])
        for name in get_args(spec.model_fields["name"].annotation)
    }
    listed = {
        name: {key: yaml.safe_load(value) for key, value in re.findall(r"`(\w+)=([^`]+)`", keys)}
        for names, _, keys in rows(ROOT / "docs" / "jobs.md", f"{key}.name")
        for name in re.findall(r"`(\w+)`", names)
    }
    plain = json.dumps(defaults, default=lambda spec: spec.model_dump())
    assert listed == json.loads(plain)  # which makes lists of tuples
