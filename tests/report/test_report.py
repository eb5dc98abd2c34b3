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
from holdfast_bench.report.readiness import PROMISES, aspects
from holdfast_bench.report.report import build
from holdfast_bench.report.results import Results
from holdfast_bench.report.theme import DARK, LIGHT, THEMES, style
from holdfast_bench.results.figures import spread
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
    assert f"{passed} of {len(rows)} failures" in said(report)
    other = changed(results, "scenarios", [{**rows[0], "passed": False}, *rows[1:]])
    assert f"{passed - 1} of {len(rows)} failures" in said(build(other))


def changed(results, benchmark, rows, **update):
    """The results with other rows of a benchmark."""
    stored = results.by_name.get(benchmark, results.by_name["recovery"])
    result = stored.model_copy(update={"rows": tuple(rows), **update})
    return Results(results.folder, {**results.by_name, benchmark: result})


def said(report):
    return " ".join(markdown.results(report))


def test_all_headline_results_are_shown_in_their_order(results):
    rows = [
        {"load": "gpt2", "way": way, "shards": 1, "step_ms": spread(values)}
        for way, values in (("plain, deterministic", [90, 92]), ("holdfast", [100, 101]))
    ]
    conditions = results.by_name["recovery"].conditions.model_copy(update={"gpus": ("GPU X",)})
    text = said(build(changed(results, "gpu", rows, conditions=conditions)))
    parts = [
        "to recover", "bits of difference", "the speed of DDP", "the speed of a plain process",
        "0.90 × with gpt2, of the speed of a plain loop.** One worker on one GPU X",
        "overhead with a checkpoint", "emulated hosts", "to detect a lost host",
    ]  # fmt: skip
    places = [text.index(part) for part in parts]
    assert places == sorted(places)


@pytest.mark.parametrize(
    ("values", "headline"),
    [
        ([-4.4], "Cost of checkpoints: measured once"),
        ([-4.4, 3.0, 2.0], "Cost of checkpoints: noise around 0"),
        ([1.0, 3.0, 2.0], "2 % overhead with a checkpoint every 10 steps"),
    ],
)
def test_noise_is_no_headline(results, values, headline):
    rows = results.rows("checkpoint")
    other = [
        {**row, "overhead_pct": spread(values)} if row["system"] == "holdfast" else row
        for row in rows
    ]
    report = build(changed(results, "checkpoint", other))
    assert f"* **{headline}.**" in "\n".join(markdown.results(report))


def test_each_published_figure_has_a_row_of_its_own_in_one_unit(report, results):
    rows = {each.quantity: each for each in report.references}
    assert len(rows) == len(report.references)
    unit = re.compile(r"KB/s|samples/s| s\b|%|×|\$")
    for each in report.references:
        if each.ours:
            assert set(unit.findall(each.published)) == set(unit.findall(each.ours)), each
    cell = results.rows("checkpoint", system="holdfast", every=10)[0]["overhead_pct"]
    assert rows["Overhead of a checkpoint every 10 steps"].ours == (
        f"{cell['median']:.3g} % (measured once)"
    )
    assert rows["Overhead of a checkpoint every 25 steps"].ours == ""


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
        check_texts(FIGURES[name](results).draw(THEMES[theme]))


def check_texts(fig):
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
    assert {"fig-1", "readiness", "architecture"} <= targets
    assert ">agent, fork server</text>" in text  # of the architecture
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
    assert len(pictures) == 4  # with the architecture
    assert all((tmp_path / name).stat().st_size > 1000 for name in pictures)
    for theme, tokens in THEMES.items():
        drawn = (tmp_path / "figures" / f"architecture-{theme}.svg").read_text()
        assert "var(" not in drawn
        assert tokens["ink"] in drawn
    page.write(report, tmp_path)


def test_what_is_no_result_is_named(tmp_path):
    with pytest.raises(JobError, match=r"has no results; measure some with holdfast bench all"):
        Results.load(tmp_path)
    (tmp_path / "recovery.json").write_text('{"benchmark": "recovery"}')
    with pytest.raises(JobError, match=r"recovery.json is no result of holdfast bench: options"):
        Results.load(tmp_path)


def test_the_test_of_each_promise_exists():
    assert [each.test for each in PROMISES if not (ROOT / each.test).exists()] == []


def test_nothing_is_proven_without_its_test(results, tmp_path):
    assert {each.status for each in aspects(results, tmp_path)} == {"not yet proven"}


@pytest.mark.parametrize(
    ("outcome", "of_check", "status"),
    [
        ("passed", "passed", "proven"),
        ("cut off after 9 s", "passed", "in part"),
        ("failed", "failed", "not yet proven"),
        ("failed", "passed", "not yet proven"),
        ("passed", "skipped", "not yet proven"),
    ],
)
def test_what_a_gpu_proves_is_what_its_stored_checks_say(results, outcome, of_check, status):
    rows = [
        {"section": 4, "check": "test_gpu_weights.py", "outcome": outcome},
        {"section": 4, "check": "test_bits", "outcome": of_check},
    ]
    conditions = results.by_name["recovery"].conditions

    def status_on(*gpus):
        machine = conditions.model_copy(update={"gpus": gpus})
        found = aspects(changed(results, "gpu-checks", rows, conditions=machine))
        return next(each.status for each in found if each.name.startswith("One GPU"))

    assert status_on("GPU X") == status
    assert status_on() == "not yet proven"  # ran on a CPU


def test_emulated_promises_rest_on_stored_results(results):
    def status(results):
        return {each.name: each.status for each in aspects(results)}["Several hosts, a lost host"]

    row = {**results.rows("scenarios")[0], "scenario": "host-lost"}
    assert status(results) == "not yet proven"  # the data has no such scenario
    assert status(changed(results, "scenarios", [{**row, "passed": True}])) == "emulated"
    assert status(changed(results, "scenarios", [{**row, "passed": False}])) == "not yet proven"


def marks(ax):
    """How many bars and points are drawn."""
    return len(ax.patches) + sum(len(line.get_xdata()) for line in ax.lines)


def test_steps_as_they_were_before_a_restart_are_drawn(results):
    rows = results.rows("timeline")
    again = [row for row in rows if row.get("again") and row["recovery"] == "restart"]
    before = [{**row, "measure": "replaced", "at_s": -0.01 * n} for n, row in enumerate(again, 1)]
    other = changed(results, "timeline", [*rows, *reversed(before)])
    wrong = changed(results, "timeline", [*rows, {**before[0], "loss": 9.0}])
    for each, answer in ((other, "No: all"), (wrong, "YES: after")):
        assert str(FIGURES["loss"](each).answer).startswith(answer)
    for name in ("loss", "timeline"):
        with style(LIGHT):
            pictures = [FIGURES[name](each).draw(LIGHT) for each in (results, other)]
            check_texts(pictures[1])
        less, more = (sum(map(marks, fig.axes)) for fig in pictures)
        assert more >= less + len(before)


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
