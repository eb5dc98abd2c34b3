"""What a task imports is imported by the fork server, once for all workers."""

import pytest

from conftest import events_of, needs_library, printed

TASK = """
import os
import pathlib
import pyarrow
print("imported")

def main(session):
    struck = pathlib.Path(session.job.params["struck"])
    if not struck.exists():
        struck.touch()
        os.kill(os.getpid(), 9)
"""


@pytest.mark.slow
@needs_library("pyarrow")
def test_a_replacement_does_not_import_pyarrow_again(train, tmp_path):
    task = tmp_path / "mine.py"
    task.write_text(TASK)
    keys = {"task": f"{task}:main", "params": {"struck": str(tmp_path / "struck")}}
    train(run_dir=tmp_path / "run", on=None, **keys)
    assert len(events_of(tmp_path / "run", "worker-started")) == 2
    assert (tmp_path / "run" / "logs" / "fork-server.log").read_text() == "imported\n"
    assert printed(tmp_path) == ""
