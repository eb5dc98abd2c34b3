"""The picture of the README is drawn from two runs, and says what the README says."""

import json
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parent.parent
IMAGES = ROOT / "docs" / "images"
TITLE = "{http://www.w3.org/2000/svg}title"


def title_of(picture):
    return ElementTree.fromstring(picture.read_text()).find(TITLE).text


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_picture_of_the_readme_is_small_and_has_its_alternative_text(theme):
    picture = IMAGES / f"hero-{theme}.svg"
    assert picture.stat().st_size < 60_000
    assert re.search(r'alt="([^"]+)"', (ROOT / "README.md").read_text())[1] == title_of(picture)


def write_run(run, losses, recoveries=()):
    run.mkdir()
    result = {"data": "digits", "weights_sha256": "0123456789abcdef" * 4}
    (run / "result.json").write_text(json.dumps(result))
    lines = [{"step": number, "loss": loss} for number, loss in enumerate(losses, start=1)]
    (run / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (run / "recoveries.jsonl").write_text("\n".join(map(json.dumps, recoveries)))


def draw(tmp_path):
    command = [sys.executable, IMAGES / "draw_hero.py", *(tmp_path / n for n in ("a", "b", "."))]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_picture_is_drawn_from_two_runs(tmp_path):
    seconds = {"found": 0.01, "forked": 0.02, "all ready": 0.03, "next step": 0.04}
    recovery = {"causes": [{"rank": 1}], "step": 2, "recomputed_steps": 0} | {
        "seconds": seconds, "total_s": 0.1
    }  # fmt: skip
    write_run(tmp_path / "a", [2.0, 1.5, 1.0])
    write_run(tmp_path / "b", [2.0, 1.5, 1.0], [recovery])
    done = draw(tmp_path)
    assert done.returncode == 0, done.stderr
    for theme in ("light", "dark"):
        assert "rank 1 is killed after step 2" in title_of(tmp_path / f"hero-{theme}.svg")


@pytest.mark.slow
@pytest.mark.soak
def test_runs_without_a_recovery_are_not_drawn(tmp_path):
    write_run(tmp_path / "a", [1.0])
    write_run(tmp_path / "b", [1.0])
    assert "one recovery" in draw(tmp_path).stderr
