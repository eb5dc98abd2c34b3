"""Download: published data sets, fetched before a run that reads them."""

from __future__ import annotations

from holdfast.data.download import download
from holdfast.data.published import PUBLISHED, PublishedFile, directory
from holdfast.errors import JobError
from holdfast.job.data import Data
from holdfast.sinks.transfers import TransferView


def download_data(data: Data | None) -> None:
    """Download the data set of a job, unless it is there, and show the progress.

    Raises:
        JobError: It is not published, or the job says where it is.
    """
    name = None if data is None else data.name
    if name not in PUBLISHED:
        raise JobError(
            f"--download supports {', '.join(PUBLISHED)}, not data.name={name}; remove it"
        )
    if getattr(data, "path", None) is not None:
        raise JobError("--download and data.path exclude each other; remove one of them")
    with TransferView() as view:

        def report(file: PublishedFile, done_bytes: int) -> None:
            view.report(f"downloading {file.name}", done_bytes, file.size_bytes)

        download(name, PUBLISHED[name], directory(name), report)
