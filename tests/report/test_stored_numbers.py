"""What the documentation says was measured is in the stored results."""

import re
from pathlib import Path

import pytest

from holdfast_bench.report import markdown
from holdfast_bench.report.report import build
from holdfast_bench.report.results import Results, _numbers

ROOT = Path(__file__).parents[2]
STORED = ROOT / "docs" / "benchmarks"
NUMBER = re.compile(r"(?<![\w.])-?\d[\d,]*(?:\.\d+)?(?: %)?")
PAGE = "docs/benchmarks.md"
RAY = "Ray Train with torchft, tuned"
WAYS = {"torchft, tuned": "torchft tuned", RAY: "Ray Train, torchft"}


SAVERS = {
    "holdfast": "holdfast",
    "torch.distributed.checkpoint, asynchronous": "dcp-thread-shm",
    "torch.save with fsync": "torch-fsync",
}

RESTARTS = {
    "holdfast, a job with `sync: ddp`": "ddp",
    "`holdfast run`, a plain script": "run",
    "torchrun, the same script": "torchrun",
}


def way(name):
    return WAYS.get(name.strip("*"), name.strip("*"))


def of_hosts(words):
    hosts, _, workers = words.partition(" x ")
    return {"hosts": int(hosts), "workers": int(workers)}


TABLES = [
    (PAGE, "| workload | system | a", "recovery", lambda a, b: {"workload": a, "way": way(b)}),
    (PAGE, "| system | small |", "recovery", lambda a, _: {"measure": "goodput", "way": way(a)}),
    ("README.md", "| | 0.8 MB", "recovery", lambda a, _: {"fault": "kill", "way": way(a)}),
    (
        PAGE,
        "| workload | system | every",
        "checkpoint",
        lambda a, b: {"workload": a, "system": b[1:-1]},
    ),
    ("README.md", "| | MLP, 302 MB", "checkpoint", lambda a, _: {"every": 10, "system": SAVERS[a]}),
    (PAGE, "| workload | system | samples", "scaling", lambda a, b: {"workload": a, "way": b}),
    ("README.md", "| | CNN, 0.1 M", "scaling", lambda a, _: {"way": a.removesuffix(" on gloo")}),
    (
        PAGE,
        "| cluster, mode |",
        "balance",
        lambda a, b: {"mode": a.split(", ")[-1], "workload": b, "cluster": a.rpartition(", ")[0]},
    ),
    (PAGE, "| change |", "sizes", lambda a, _: {"change": a}),
    (
        PAGE,
        "| agents | interval",
        "heartbeat",
        lambda a, b: {"agents": int(a), "interval_s": float(b)},
    ),
    (PAGE, "| system | seconds | restarts |", "restart", lambda a, _: {"way": RESTARTS[a]}),
    (
        PAGE,
        "| workload | setting |",
        "overhead",
        lambda a, b: {"workload": a, "setting": b[1:-1]},
    ),
    (PAGE, "| wait |", "wake", lambda a, _: {"wait": a[1:-1]}),
    (
        PAGE,
        "| hosts x workers | size |",
        "hosts",
        lambda a, b: {"measure": "reduction", "what": b, **of_hosts(a)},
    ),
    (PAGE, "| workload | back |", "coordinator", lambda a, _: {"workload": a}),
    (PAGE, "| hosts | weak: step", "emulate", lambda a, _: {"hosts": int(a)}),
    (PAGE, "| workload | method |", "compression", lambda a, b: {"workload": a, "method": b[1:-1]}),
    (PAGE, "| | seconds | of plain |", "startup", lambda a, _: {"way": a}),
    (PAGE, "| shape | shards |", "host", lambda a, b: {"shape": a, "shards": int(b)}),
]
"""Tables that show stored results: the page, the start of the first line, the benchmark, and the
rows that a line shows, by its first two cells.
"""


def lines_of(page, head):
    """The cells of each line of a table."""
    text = (ROOT / page).read_text()
    assert text.count(f"\n{head}") == 1, f"{page} has not one table {head}"
    lines = text.split(f"\n{head}")[1].partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines]


def is_in(text, stored):
    """True if a number, as it is written, is one of those, or a share of them in percent."""
    value = float(text.removesuffix(" %").replace(",", ""))
    digits = len(text.removesuffix(" %").partition(".")[2])
    scales = (1, 100) if text.endswith("%") else (1,)
    return any(
        abs(each * scale - value) <= 0.5 * 10**-digits + 1e-9 for each in stored for scale in scales
    )


@pytest.fixture(scope="module")
def stored():
    return Results.load(STORED)


@pytest.mark.parametrize(("page", "head", "benchmark", "shown"), TABLES)
def test_a_table_of_the_documentation_shows_what_is_stored(stored, page, head, benchmark, shown):
    lines = lines_of(page, head)
    assert len(lines) > 1
    for cells in lines:
        wanted = shown(*cells[:2])
        rows = stored.rows(benchmark, **wanted)
        assert rows, cells
        words = {each for row in rows for each in row.values() if isinstance(each, str)}
        measured = [cell for cell in cells[1:] if cell.strip("`") not in words]
        text = re.sub(r"(?<=\d)-", " to ", " ".join(measured))  # a range
        wrong = [each for each in NUMBER.findall(text) if not is_in(each, list(_numbers(rows)))]
        assert wrong == [], cells


def test_a_number_that_is_not_stored_is_noticed():
    assert is_in("0.159", [0.159])
    assert is_in("3.57", [3.574])
    assert is_in("97.0 %", [0.9704])
    assert not is_in("97.0", [0.9704])
    assert not is_in("0.16", [0.179])
    assert not is_in("3.58", [3.574])
    assert not is_in("5", [4, 6])


def test_speeds_on_a_gpu_are_those_of_its_output():
    output = (STORED / "gpu.txt").read_text()
    for cells in lines_of(PAGE, "| | 1 shard, ms: plain, holdfast"):
        name = cells[0].strip("`")
        lines = [line.split() for line in output.splitlines() if line.split()[:1] == [name]]
        numbers = [float(word) for words in lines for word in words if NUMBER.fullmatch(word)]
        for each in NUMBER.findall(" ".join(cells[1:])):
            assert is_in(each, numbers), (name, each)


def test_the_stored_report_is_that_of_the_stored_results(stored):
    assert (STORED / "report.md").read_text() == markdown.text(build(stored)), (
        "run holdfast report docs/benchmarks, and remove report.html"
    )
    pictures = re.findall(r'(?:src|srcset)="([^"]+)"', (STORED / "report.md").read_text())
    found = {str(path.relative_to(STORED)) for path in (STORED / "figures").iterdir()}
    assert found == set(pictures)
