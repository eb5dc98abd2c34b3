"""The report says what the results say, and can be read."""

import itertools
import json
import re
import shutil
from pathlib import Path

import pytest

from holdfast.errors import JobError
from holdfast_bench.report import markdown, page
from holdfast_bench.report.drawing import renderer_of
from holdfast_bench.report.figures import FIGURES
from holdfast_bench.report.readiness import ASPECTS
from holdfast_bench.report.report import build
from holdfast_bench.report.results import Results
from holdfast_bench.report.theme import DARK, LIGHT, THEMES, style
from holdfast_bench.suite.catalogue import BY_NAME

ROOT = Path(__file__).parents[2]
DATA = Path(__file__).parent / "data"
"""Results of `holdfast bench all --quick` on two cores, with fewer rows of long ones."""


@pytest.fixture(scope="module")
def results():
    return Results.load(DATA)


@pytest.fixture(scope="module")
def report(results):
    return build(results)


def test_every_figure_has_data(report):
    assert [figure.name for figure in report.figures] == list(FIGURES)
    assert report.missing == ()


CONSTANTS = {"young": {3600.0}, "count": {1.0}}
"""What a formula takes apart from measured numbers: an hour, and what is counted."""


def test_every_number_of_a_sentence_is_in_the_data_that_it_cites(report, results):
    checked = 0
    for sentence in report.sentences:
        for number in sentence.numbers.values():
            known = results.numbers(number.source) | CONSTANTS.get(number.formula, set())
            assert set(number.inputs) <= known, str(sentence)
            checked += 1
        assert not re.search(r"(?<![\w(-])\d+(?:\.\d+)? (?:s|%|ms|×)(?!\w)", sentence.literal)
    assert checked > 20


def test_what_is_counted_is_counted_right(report, results):
    rows = results.rows("scenarios")
    passed = sum(row["passed"] for row in rows)
    said = [str(bullet.value) for bullet in report.bullets]
    assert f"{passed} of {len(rows)} scenarios" in said
    failing = [{**rows[0], "passed": False}, *rows[1:]]
    changed = results.by_name["scenarios"].model_copy(update={"rows": tuple(failing)})
    other = Results(results.folder, {**results.by_name, "scenarios": changed})
    assert f"{passed - 1} of {len(rows)} scenarios" in [str(b.value) for b in build(other).bullets]


def texts_of(fig):
    """The texts that are drawn, with their places, px."""
    fig.canvas.draw()
    renderer = renderer_of(fig)
    labels = [
        tick.label1
        for ax in fig.axes
        for axis in (ax.xaxis, ax.yaxis)
        for tick in axis._update_ticks()  # those within the limits
    ]
    texts = [*fig.texts, *(text for ax in fig.axes for text in ax.texts), *labels]
    shown = [text for text in texts if text.get_text().strip() and text.get_visible()]
    return [(text.get_text(), text.get_window_extent(renderer)) for text in shown]


@pytest.mark.parametrize("name", FIGURES)
@pytest.mark.parametrize("theme", THEMES)
def test_no_texts_of_a_figure_overlap_and_none_leaves_it(results, name, theme):
    with style(THEMES[theme]):
        fig = FIGURES[name](results).draw(THEMES[theme])
        found = texts_of(fig)
    assert len(found) > 3
    width, height = fig.get_size_inches() * fig.dpi
    for text, place in found:
        assert place.x0 >= -1, text
        assert place.y0 >= -1, text
        assert place.x1 <= width + 1, text
        assert place.y1 <= height + 1, text
    for (one, a), (other, b) in itertools.combinations(found, 2):
        across = min(a.x1, b.x1) - max(a.x0, b.x0)
        along = min(a.y1, b.y1) - max(a.y0, b.y0)
        assert across <= 1 or along <= 2, f"{one!r} and {other!r} overlap"


def test_phases_add_up_or_the_rest_is_drawn(report):
    from holdfast_bench.report.figures.phases import missing

    bars = [("a", {"detect": 0.5}, 1.0), ("b", {"detect": 0.99}, 1.0)]
    assert [missing(bar) > 0.05 for bar in bars] == [True, False]


def test_every_figure_names_its_data_and_a_command_that_exists(report):
    for figure in report.figures:
        assert (DATA / f"{figure.source}.json").exists()
        for name in re.findall(r"holdfast bench (\w+)", figure.command):
            assert name in BY_NAME


def test_the_page_is_one_file_that_loads_nothing(report, tmp_path):
    text = page.write(report, tmp_path).read_text()
    assert list(tmp_path.iterdir()) == [tmp_path / "report.html"]
    assert not re.findall(r'(?:src|href)\s*=\s*["\']?(?!#|data:)[\w/.]', text)
    assert not re.findall(r"url\((?!data:|#)", text)
    for number, figure in enumerate(report.figures, 1):
        assert f'<h3 id="fig-{number}">{number} · {figure.question}' in text
        assert str(figure.answer).split()[0] in text
    targets = set(re.findall(r'href="#([\w-]+)"', text))
    assert {"fig-1", "readiness"} <= targets
    assert {each for each in targets if f'id="{each}"' not in text} == set()
    assert not [color for color in LIGHT.values() if color in text.split("</style>")[1]]


def test_a_report_of_one_result_has_its_pictures_and_says_what_is_missing(tmp_path):
    shutil.copy(DATA / "heartbeat.json", tmp_path)
    report = build(Results.load(tmp_path))
    assert [figure.name for figure in report.figures] == ["heartbeat"]
    assert "recovery" in report.missing
    text = markdown.write(report, tmp_path).read_text()
    assert "Not measured: recovery" in text
    pictures = re.findall(r'(?:src|srcset)="([^"]+)"', text)
    assert len(pictures) == 2
    assert all((tmp_path / name).stat().st_size > 1000 for name in pictures)
    page.write(report, tmp_path)


def test_what_is_no_result_is_named(tmp_path):
    with pytest.raises(JobError, match=r"has no results; measure some with holdfast bench all"):
        Results.load(tmp_path)
    (tmp_path / "recovery.json").write_text('{"benchmark": "recovery"}')
    with pytest.raises(JobError, match=r"recovery.json is no result of holdfast bench: options"):
        Results.load(tmp_path)


def test_tests_that_prove_something_exist():
    for aspect in ASPECTS:
        assert (ROOT / aspect.test).exists() == (aspect.status != "not yet proven"), aspect.test


def test_light_colors_are_unique():
    assert len(set(LIGHT.values())) == len(LIGHT)
    assert LIGHT.keys() == DARK.keys()


@pytest.mark.slow
def test_the_command_writes_both(command_line, tmp_path):
    status, output, _ = command_line("report", str(DATA), "--output", str(tmp_path))
    assert status == 0
    assert output.splitlines()[:2] == [
        str(tmp_path / "report.html"),
        str(tmp_path / "report.md"),
    ]
    assert json.loads((DATA / "recovery.json").read_text())["benchmark"] == "recovery"
