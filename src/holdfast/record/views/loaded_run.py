"""`holdfast.load_run`: the record of a run for notebooks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.errors import JobError
from holdfast.record.run_record import Goodput, RunRecord
from holdfast.record.state import RunState
from holdfast.record.views.tables import TableSource, converted, tables_of

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from matplotlib.figure import Figure


class Table(Mapping[str, list[Any]]):
    """A table: a list per column by name, None where a row has no value.

    Args:
        source: Function that reads it, once.
    """

    def __init__(self, source: TableSource) -> None:
        columns = source.all_columns()
        self.name = source.name
        self._columns = {name: list[Any]() for name in columns}
        for row in source.rows():
            for name, value in converted(row, columns).items():
                self._columns[name].append(value)

    def __getitem__(self, name: str) -> list[Any]:
        return self._columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    @property
    def num_rows(self) -> int:
        """Number of its rows."""
        return len(next(iter(self._columns.values())))

    def __repr__(self) -> str:
        return f"<Table {self.name}: {self.num_rows} rows, columns {', '.join(self)}>"

    def to_pandas(self) -> pd.DataFrame:
        """The table as a data frame.

        Raises:
            JobError: pandas is not installed.
        """
        try:
            import pandas as pd
        except ImportError:
            raise JobError("to_pandas needs pandas; pip install pandas") from None
        return pd.DataFrame(self._columns)

    def to_arrow(self) -> pa.Table:
        """The table as one of pyarrow.

        Raises:
            JobError: pyarrow is not installed.
        """
        try:
            import pyarrow as pa
        except ImportError:
            raise JobError("to_arrow needs pyarrow; pip install 'holdfast[data]'") from None
        return pa.table(self._columns)


class LoadedRun:
    """Record of a run as tables; each is read when it is first used.

    Args:
        path: The run's directory.

    Raises:
        JobError: There is no run.
    """

    def __init__(self, path: Path) -> None:
        self.record = RunRecord(path)
        self._sources = {source.name: source for source in tables_of(self.record)}

    def __repr__(self) -> str:
        return f"<run {self.record.path}: {self.state.name}, {self.record.steps.newest} steps>"

    @property
    def state(self) -> RunState:
        """State of the run."""
        return self.record.state()

    @property
    def goodput(self) -> Goodput:
        """Use of the run's time."""
        return self.record.goodput()

    @property
    def result(self) -> dict[str, Any] | None:
        """Result of the run; None before it has ended."""
        return self.record.result

    @cached_property
    def steps(self) -> Table:
        """A row per step."""
        return Table(self._sources["steps"])

    @cached_property
    def workers(self) -> Table:
        """A row per step and rank."""
        return Table(self._sources["workers"])

    @cached_property
    def evaluations(self) -> Table:
        """A row per evaluation."""
        return Table(self._sources["evaluations"])

    @cached_property
    def events(self) -> Table:
        """A row per event."""
        return Table(self._sources["events"])

    @cached_property
    def recoveries(self) -> Table:
        """A row per recovery."""
        return Table(self._sources["recoveries"])

    @cached_property
    def checkpoints(self) -> Table:
        """A row per checkpoint that was committed."""
        return Table(self._sources["checkpoints"])

    def figure(self) -> Figure:
        """Loss, throughput and shards over time, with failures marked."""
        from holdfast.record.views.figure import figure_of  # imports matplotlib

        return figure_of(self.record)


def load_run(path: str | Path) -> LoadedRun:
    """Load what a run has left in its directory, whether it has ended or not.

    Args:
        path: The run directory.

    Raises:
        JobError: It contains no run.

    Example::

        >>> run = holdfast.load_run("runs/example")
        >>> run.steps.to_pandas().plot(x="step", y="loss")
    """
    return LoadedRun(Path(path))
