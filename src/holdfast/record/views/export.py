"""Export: writes the tables of a run as CSV or Parquet files, and its charts as a picture."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from holdfast.errors import JobError
from holdfast.record.run_record import RunRecord
from holdfast.record.views.tables import TableSource, converted, tables_of

BATCH_ROWS: Final = 1 << 14
"""Most rows that are held in memory."""


def write_tables(record: RunRecord, folder: Path, form: str) -> dict[str, int]:
    """Write each table of a run to a file of its own.

    Args:
        record: The run.
        folder: Destination; it is made if it is not there. Files of the same names are replaced.
        form: `csv` or `parquet`, which also ends the names of the files.

    Returns:
        The number of rows by table.

    Raises:
        JobError: Parquet is asked for, and pyarrow is not installed.
        OSError: A file cannot be written.
    """
    write = _write_csv if form == "csv" else _parquet_writer()
    folder.mkdir(parents=True, exist_ok=True)
    return {
        table.name: write(table, folder / f"{table.name}.{form}") for table in tables_of(record)
    }


def _batches(table: TableSource, columns: Mapping[str, type]) -> Iterator[list[dict[str, Any]]]:
    rows = (converted(row, columns) for row in table.rows())
    while batch := list(itertools.islice(rows, BATCH_ROWS)):
        yield batch


def _write_csv(table: TableSource, path: Path) -> int:
    columns = table.all_columns()
    count = 0
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        for batch in _batches(table, columns):
            writer.writerows(batch)
            count += len(batch)
    return count


def _parquet_writer() -> Any:
    """Writes a table to a Parquet file."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise JobError(
            "--format parquet needs pyarrow; pip install 'holdfast[data]', or use --format csv"
        ) from None
    kinds = {
        bool: pyarrow.bool_(),
        int: pyarrow.int64(),
        float: pyarrow.float64(),
        str: pyarrow.string(),
    }

    def write(table: TableSource, path: Path) -> int:
        columns = table.all_columns()
        count = 0
        schema = pyarrow.schema([(name, kinds[kind]) for name, kind in columns.items()])
        with parquet.ParquetWriter(path, schema) as writer:
            for batch in _batches(table, columns):
                writer.write_batch(pyarrow.RecordBatch.from_pylist(batch, schema=schema))
                count += len(batch)
        return count

    return write


def write_figure(record: RunRecord, path: Path) -> None:
    """Write the charts of a run to a picture.

    Raises:
        OSError: It cannot be written.
    """
    from holdfast.record.views.figure import figure_of  # only a picture pays for the import

    path.parent.mkdir(parents=True, exist_ok=True)
    figure_of(record).savefig(path, format="png")
