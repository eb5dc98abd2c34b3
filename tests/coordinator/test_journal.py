"""Journal entries survive the death of their process and the loss of the end of the file."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import sampled
from holdfast.coordinator.journal import FOLD_EVERY, Journal
from holdfast.core.actions import GenerationOpened, JournalEntry, RunEnded

RANKS = 100  # so that a entry takes about a page, and the table needs inner pages soon


def entry(number: int) -> JournalEntry:
    if number % 5 == 4:
        return RunEnded(str(number))
    return GenerationOpened(
        number, {rank: f"host-{(rank + number) % 50:04}" for rank in range(RANKS)}
    )


@dataclass(frozen=True)
class Written:
    """A journal as a killed process leaves it.

    Attributes:
        database, log: Its two files.
        ends: Bytes of the log after each entry that is not folded into the database.
    """

    entries_written: tuple[JournalEntry, ...]
    database: bytes
    log: bytes
    ends: tuple[int, ...]

    def check(self, cut: int, tail: bytes, directory: Path) -> None:
        """Open it with its log cut short and something else behind the cut."""
        path = directory / "journal.db"
        for old in directory.iterdir():
            old.unlink()
        path.write_bytes(self.database)
        log_of(path).write_bytes(self.log[:cut] + tail)
        there = len(self.entries_written) - len(self.ends) + sum(end <= cut for end in self.ends)
        with Journal(path) as journal:
            kept = journal.entries()
            assert tuple(kept) == self.entries_written[: len(kept)], (
                "no prefix of what was recorded"
            )
            assert len(kept) >= there, "a entry is lost that lies whole in the log"
            journal.append(RunEnded("over"))
        with Journal(path) as journal:
            assert journal.entries() == [*kept, RunEnded("over")]


def log_of(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


@pytest.fixture(
    scope="module",
    params=sampled([6, FOLD_EVERY + 6, 2 * FOLD_EVERY, 2 * FOLD_EVERY + 6], 0, 1),
)
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Written:
    path = tmp_path_factory.mktemp("written") / "journal.db"
    entries_written = tuple(map(entry, range(request.param)))
    with Journal(path) as journal:
        ends = []
        for each in entries_written:
            journal.append(each)
            ends.append(log_of(path).stat().st_size)
            if not ends[-1]:
                ends = []
        return Written(entries_written, path.read_bytes(), log_of(path).read_bytes(), tuple(ends))


def test_a_journal_gives_back_its_entries(tmp_path: Path) -> None:
    entries_written = [
        GenerationOpened(1, {0: "a", 1: "b"}),
        GenerationOpened(2, {0: "a"}),
        RunEnded("disk full"),
    ]
    with Journal(tmp_path / "journal.db") as journal:
        for each in entries_written:
            journal.append(each)
    with Journal(tmp_path / "journal.db") as journal:
        assert journal.entries() == entries_written


@pytest.mark.slow
def test_the_database_changes_only_when_the_log_is_truncated(tmp_path: Path) -> None:
    """Else the rest of a log that lost its end would hide what the database has newer."""
    path = tmp_path / "journal.db"
    with Journal(path) as journal:
        before, folded = path.read_bytes(), 0
        for number in range(5 * FOLD_EVERY):
            journal.append(entry(number))
            if log_of(path).stat().st_size:
                assert path.read_bytes() == before
            else:
                before, folded = path.read_bytes(), folded + 1
    assert folded == 5


@pytest.mark.soak
@pytest.mark.slow
def test_a_log_that_ends_anywhere_gives_all_entries_before(
    written: Written, tmp_path: Path
) -> None:
    for cut in range(0, len(written.log) + 1, 509):
        written.check(cut, b"", tmp_path)
    for end in written.ends:
        for cut in range(end - 3, end + 1):
            written.check(cut, b"", tmp_path)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_garbage_after_the_end_is_not_read_as_entries(
    written: Written, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    directory = tmp_path_factory.getbasetemp() / "cut"
    directory.mkdir(exist_ok=True)
    cut = data.draw(st.integers(0, len(written.log)))
    begin = data.draw(st.integers(0, len(written.log)))
    former = written.log[begin : begin + 20_000]
    tails = st.binary(max_size=10_000) | st.integers(1, 20_000).map(bytes) | st.just(former)
    written.check(cut, data.draw(tails), directory)


WRITER = """
import sys
from pathlib import Path
from test_journal import entry
from holdfast.coordinator.journal import Journal
journal = Journal(Path(sys.argv[1]))
for number in range(10**6):
    journal.append(entry(number))
    print(number, flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "last", sampled([0, 1, 7, FOLD_EVERY - 2, FOLD_EVERY - 1, FOLD_EVERY + 30], 4)
)
def test_a_killed_process_leaves_all_entries_that_it_has_appended(
    last: int, tmp_path: Path
) -> None:
    path = tmp_path / "journal.db"
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, path],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as writer:
        assert writer.stdout is not None
        for line in writer.stdout:
            if int(line) == last:
                break
        writer.kill()  # somewhere in the next ones
        said = [last, *map(int, writer.stdout)][-1]
    with Journal(path) as journal:
        kept = journal.entries()
    assert kept == [entry(number) for number in range(len(kept))]
    assert len(kept) in (said + 1, said + 2)
