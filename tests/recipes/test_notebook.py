"""The notebook among the recipes runs in a kernel, as a user would run it."""

from pathlib import Path

import pytest

from conftest import Library, needs_library

nbclient = Library("nbclient")
nbformat = Library("nbformat")

NOTEBOOK = Path(__file__).parents[2] / "docs" / "recipes" / "notebook.ipynb"


@needs_library("nbclient", "nbformat")
@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_function_of_a_notebook_trains_while_a_worker_is_killed(tmp_path):
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    client = nbclient.NotebookClient(notebook, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    accuracy = notebook.cells[-1].outputs[0]["data"]["text/plain"]
    assert float(accuracy) > 0.95
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    shown = [output.get("data", {}).get("text/plain", "") for output in outputs]
    assert "rank 1 was killed by SIGKILL" in "".join(shown)
    sources = [path.read_text() for path in (tmp_path / "runs").glob("*/code.py")]
    assert len(sources) == 2
    assert all("def main(session):" in source for source in sources)
