"""A run that leaves checkpoints behind without training, for tests of backups."""

import json

from checkpoints import layout_of, save, state_of
from conftest import SMALL
from holdfast.checkpoint.manifest import Best
from holdfast.checkpoint.remote.open import open_store
from holdfast.checkpoint.sealing.seal import UNSEALED
from holdfast.job import load
from holdfast.rundir.json_lines import EventLog
from holdfast.rundir.run_directory import RunDirectory
from holdfast.sinks.backup.run_copy import name_of
from holdfast.sinks.backup.uploader import Uploader

LAYOUT = layout_of(4)


class FakeRun:
    """A run directory whose run does what a test says.

    Args:
        path: The directory.
        to: Where it is copied to.
        keys: Further keys of the job.
    """

    def __init__(self, path, to, **keys):
        self.path, self.backup = path, {"to": str(to), **keys.pop("backup", {})}
        self.job = load.check({**SMALL, **keys, "backup": self.backup}, where="test")
        with RunDirectory(path, self.job, resume=False):
            pass
        self.log = EventLog(path / "events.jsonl")
        self.told, self.copy = [], name_of(self.job.name, path)

    def save(self, step, *, layout=LAYOUT, best=None, seed=None, seal=UNSEALED):
        """Commit a checkpoint as an agent does, and log it."""
        flat = state_of(layout, seed=step if seed is None else seed)
        fields = {} if best is None else {"best": Best(value=0.5, step=best)}
        saved = save(self.path / "checkpoints", step, flat, layout, seal=seal, **fields)
        self.log.event("checkpoint-committed", step=step, directory=str(saved))
        with (self.path / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"step": step, "loss": 1.0}) + "\n")
        return saved

    def copied_while(self, *happens, objects=None, told=None):
        """Copy the run: each of `happens` is called between two looks for new checkpoints, then
        the run has ended. Returns whether all was copied.
        """
        objects = objects or open_store(f"{self.backup['to']}/{self.copy}", {})
        left = list(happens)

        def await_end(timeout_s):
            if timeout_s and left:
                left.pop(0)()
                return False
            return not left

        tell = told or self.told.append
        settings = self.job.backup
        uploader = Uploader(
            self.path, self.job.code_reference, settings, objects, self.log, tell, await_end
        )
        return uploader.run()
