"""TensorBoard: an event file in the run directory.

What was written and not acknowledged is cut off before the next write. So each value is in the file
once, and a file that is shorter than what was acknowledged is written again from the start.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, BinaryIO, Final

from holdfast.sinks.trackers.tracker import Batch, Point, TrackedRun

FOLDER: Final = "tensorboard"
"""Below the run directory."""


class TensorBoard:
    """Writes one event file per run; see `Tracker`."""

    name = "tensorboard"
    takes_files = False

    def __init__(self) -> None:
        self.kept: dict[str, Any] = {"bytes": 0}
        self._file: BinaryIO | None = None

    def open(self, run: TrackedRun, kept: Mapping[str, Any]) -> bool:
        """Open the file, and begin it if that has not been done."""
        path = run.path / FOLDER / f"events.out.tfevents.{run.run_id}"
        path.parent.mkdir(exist_ok=True)
        self._file = path.open("ab")
        size = kept.get("bytes", 0)
        if size and self._file.tell() >= size:
            self.kept["bytes"] = size
            return True
        self.kept["bytes"] = 0
        began = (run.path / "job.yaml").stat().st_mtime
        self._write([{"wall_time": began, "file_version": "brain.Event:2"}, _text(run, began)])
        return not size

    def send(self, batch: Batch) -> None:
        """Write the points of a batch, those of one step and time as one event."""
        self._write(_events(batch.points))

    def finish(self, status: str, files: Sequence[Path]) -> None:
        """The file is complete as it is."""

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def _write(self, events: Sequence[Mapping[str, Any]] | Iterator[Mapping[str, Any]]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        assert self._file is not None
        self._file.truncate(self.kept["bytes"])
        records = RecordWriter(self._file)
        for event in events:
            records.write(Event(**event).SerializeToString())
        records.flush()
        self.kept["bytes"] = self._file.seek(0, 2)


def _events(points: Sequence[Point]) -> Iterator[Mapping[str, Any]]:
    from tensorboard.compat.proto.summary_pb2 import Summary

    for (step, now), same in groupby(points, lambda point: (point.step, point.time_unix_s)):
        values = [Summary.Value(tag=point.name, simple_value=point.value) for point in same]
        yield {"wall_time": now, "step": step, "summary": Summary(value=values)}


def _text(run: TrackedRun, now: float) -> Mapping[str, Any]:
    """The job and the tags, which TensorBoard shows as Markdown."""
    from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
    from tensorboard.compat.proto.types_pb2 import DT_STRING

    tags = "".join(f"{name}: {value}\n" for name, value in run.tags.items())
    text = "".join(f"    {line}\n" for line in f"{run.job.text}\n{tags}".splitlines())
    tensor = TensorProto(
        dtype=DT_STRING,
        string_val=[text.encode()],
        tensor_shape=TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)]),
    )
    plugin = SummaryMetadata.PluginData(plugin_name="text")
    value = Summary.Value(tag="job", tensor=tensor, metadata=SummaryMetadata(plugin_data=plugin))
    return {"wall_time": now, "step": 0, "summary": Summary(value=[value])}
