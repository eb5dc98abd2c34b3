"""RunDirectory: the one place for everything that a run leaves behind.

runs/digits-20260102-150405/
  job.yaml            what was asked for
  run.id              names the run on all of its hosts
  coordinator.address where the coordinator is, if it has moved, for the agent of this host
  events.jsonl        what happened
  metrics.jsonl       a line a step
  recomputed.jsonl    the lines of steps that were computed again, as they were before
  recoveries.jsonl    recovery reports, if there were any
  system.jsonl        what the hosts use, every two seconds; see rundir.system_file
  profile.json        what hosts reach, if it was given; see hardware.profile_file
  loss.png            the loss curve
  result.json         how it ended
  code-version.json   which code of the user it executes
  code.py             the source of a task that no file holds, such as a notebook's
  code.zip            the sources of the task, packed for other hosts; these have them in code/
  logs/rank-0.log …   what each worker printed; rank-0.stacks: where it was when one hung
  logs/backup.log     what the process that copies the run to a second store printed
  logs/coordinator-events.txt   what the coordinator decided; see core.debug_log
  checkpoints/        see checkpoint.store
  bases/              frozen weights, which are in no checkpoint; see arena.frozen_base
  secrets/            keys and tokens of a run on several hosts, and for its metrics
  trackers/           what trackers have acknowledged; tensorboard/, wandb/: what these write
"""

from __future__ import annotations

import fcntl
import itertools
import os
import re
import secrets
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from holdfast.errors import JobError
from holdfast.job import JOB_FILE
from holdfast.linux.files import replace_synced, sync_directory
from holdfast.rundir import json_lines

if TYPE_CHECKING:
    from holdfast.job.run_keys import RunKeys
    from holdfast.job.spec import Job

RUNS: Final = Path("runs")
"""Directory of runs whose own has not been named."""
EVENTS: Final = "events.jsonl"
METRICS: Final = "metrics.jsonl"
RECOMPUTED: Final = "recomputed.jsonl"
RECOVERIES: Final = "recoveries.jsonl"
SYSTEM: Final = "system.jsonl"
RESULT: Final = "result.json"
PROFILE: Final = "profile.json"
BASES: Final = "bases"
CODE_VERSION: Final = "code-version.json"
"""File of `code_version`."""
CODE: Final = "code.py"
"""The source text of a task that came by value, for people."""
ARCHIVE: Final = "code.zip"
"""The sources of the job's task, for other hosts; see `tasks.code`."""
DEBUG_LOG: Final = "coordinator-events.txt"
CRASH_DUMP: Final = "coordinator-crash.txt"
"""Below `logs/`; see `core.debug_log`."""
SECRETS: Final = Path("secrets")
TOKEN: Final = SECRETS / "join.token"
"""For runs on several hosts: keys and tokens, which only their owner can read."""
METRICS_TOKEN: Final = SECRETS / "metrics.token"
"""For those who read metrics from other hosts."""
COORDINATOR_ADDRESS: Final = "coordinator.address"
"""File with the gRPC address of the coordinator, for an agent of another host. Its command replaces
it whenever the coordinator moves, and before it starts an agent: an old one would mislead that."""
_LOCK: Final = ".lock"
_MAX_HOLDER: Final = 300
"""Most of a lock's text that is read: the process that holds it, bytes."""
ID: Final = "run.id"
SEARCH: Final = "search.yaml"
"""In the directory of a search, whose trials are runs in `trials/`."""


class InUse(JobError):
    """Another process holds the run directory."""


def new_run(name: str) -> Path:
    """A directory below `runs/` for something new called `name`, which is not made yet."""
    return RUNS / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


def worker_log(logs: Path, rank: int) -> Path:
    """File to which worker `rank` of a run writes what it prints."""
    return logs / f"rank-{rank}.log"


def search_of(run_dir: Path) -> str:
    """The name of the search of which a run is a trial; empty if it is none."""
    search = run_dir.resolve().parent.parent
    return search.name if (search / SEARCH).exists() else ""


def run_id_of(run_dir: Path) -> str:
    """The id of the run in a directory; empty if it has none."""
    try:
        return (run_dir / ID).read_text(encoding="ascii")
    except FileNotFoundError:
        return ""


def moved_coordinator(run_dir: Path) -> str:
    """The newest address of the coordinator that a run directory has; empty if none can be read."""
    try:
        return (run_dir / COORDINATOR_ADDRESS).read_text(encoding="utf-8").strip()
    except OSError:  # no agent ends because of its disk
        return ""


def is_held(run_dir: Path) -> bool:
    """True if a process holds a run's directory, as `RunDirectory` does."""
    try:
        fd = os.open(run_dir / _LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def is_held_here(run_dir: Path) -> bool:
    """True if a process of this host holds a run's directory; hosts may share it."""
    if not is_held(run_dir):
        return False
    holder = (run_dir / _LOCK).read_text(encoding="utf-8", errors="replace")
    return holder.endswith(f" on {socket.gethostname()}")


def holder_of(run_dir: Path) -> int:
    """The process of this host that holds a run's directory; 0 for none."""
    if not is_held_here(run_dir):
        return 0
    return int((run_dir / _LOCK).read_text(encoding="utf-8").partition(" ")[0])


@contextmanager
def held(run_dir: Path) -> Iterator[None]:
    """Hold the directory of a run that has ended, as a run does, so that none begins meanwhile.

    Raises:
        JobError: It is in use, or cannot be written to.
    """
    try:
        lock = _locked(run_dir / _LOCK)
    except OSError as error:
        raise JobError(f"run directory {run_dir}: {error.strerror}") from None
    try:
        yield
    finally:
        os.close(lock)


class RunPaths:
    """A run's directory, as it is used on every host.

    Args:
        path: Path of the directory.
        job: The job that it belongs to.
    """

    def __init__(self, path: Path, job: Job) -> None:
        self.path = path
        self.job = job
        self.checkpoints = path / "checkpoints"
        self.logs = path / "logs"


class RunDirectory(RunPaths):
    """A run's directory, held by one process at a time.

    Args:
        path: Path of the directory.
        job: The job that it belongs to.
        resume: True if it must be there already.
        run_id: Names the run, on all of its hosts; by default a new one, or that of the directory.

    A job with which a run was resumed is forgotten again if it is the reason why the run ends.

    Raises:
        JobError: It is another job's, is in use, cannot be made, or is not there to resume.
    """

    def __init__(self, path: Path, job: Job, *, resume: bool, run_id: str = "") -> None:
        super().__init__(path, job)
        spec = path / "job.yaml"
        self._replaced: bytes | None = None
        try:
            if resume:
                self._check_same_job(path, job)
            elif spec.exists():
                raise JobError(
                    f"{path} already contains a run; continue it with --resume (resume=True in "
                    "Python), or name another run directory"
                )
            self.logs.mkdir(parents=True, exist_ok=True)
            self.checkpoints.mkdir(exist_ok=True)
            self._lock = _locked(path / _LOCK)
            self._identify(path, run_id)
            self._replaced = spec.read_bytes() if resume else None
            from holdfast.job import load  # not needed to look at runs

            replace_synced(spec, load.dump(job).encode())
            sync_directory(path.parent)
        except OSError as error:
            raise JobError(
                f"run directory {path}: {error.strerror}; fix that, or name another run directory"
            ) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        try:
            if self._replaced is not None and isinstance(error, JobError):
                with suppress(OSError):  # the error that is raised matters more
                    replace_synced(self.path / "job.yaml", self._replaced)
        finally:
            os.close(self._lock)

    @staticmethod
    def _identify(path: Path, run_id: str) -> None:
        known = run_id_of(path)
        if known and run_id not in ("", known):
            raise JobError(
                f"{path} holds another run of the same name: its checkpoints are not of this one; "
                "name another --run, or remove it"
            )
        if not known:
            replace_synced(path / ID, (run_id or secrets.token_hex(8)).encode())

    @staticmethod
    def newest(job: RunKeys) -> Path:
        """The newest run of `job` below `runs/`.

        Raises:
            JobError: There is none.
        """
        ours = re.compile(re.escape(job.name) + r"-\d{8}-\d{6}-[0-9a-f]{4}")
        jobs = [path for path in RUNS.glob("*/job.yaml") if ours.fullmatch(path.parent.name)]
        if not jobs:
            raise JobError(
                f"no run of {job.name} to resume: there is no {RUNS}/{job.name}-DATE-TIME-ID here; "
                "start one without --resume (resume=True), or name its run directory"
            )
        return max(jobs, key=lambda path: path.parent.name).parent

    @staticmethod
    def job_of(path: Path) -> Job:
        """The job of the run in `path`.

        Raises:
            JobError: There is no run.
        """
        if not (path / JOB_FILE).exists():
            raise JobError(
                f"{path} holds no run to resume: it has no {JOB_FILE}; start one without "
                "--resume (resume=True in Python)"
            )
        from holdfast.job import load  # not needed to look at runs

        return load.of_run(path)

    @staticmethod
    def _check_same_job(path: Path, job: Job) -> None:
        before = RunDirectory.job_of(path).weights_config()
        key = job.changed_since(before)
        if key == "epochs" and before[key] < job.weights_config()[key]:
            raise JobError(
                f"{path} is a run with epochs={before[key]}, not {job.weights_config()[key]}; "
                "continue it with extend=true, or start a new run"
            )
        if key is not None:
            raise JobError(
                f"{path} is a run with {key}={before.get(key)}, not "
                f"{job.weights_config().get(key)}: its weights would not be those of either job. "
                "Resume with the same value, name the directory of another run, or start a new one"
            )


def placed_directory(name: str, job: Job, run_id: str) -> RunDirectory:
    """The directory of an agent that an engine has placed on this host: the first one of the run
    that no other agent holds, so that one in the place of another finds its checkpoints.

    Args:
        name: The run's.
        job: The run's job.
        run_id: Id of the run; see `RunDirectory`.

    Raises:
        JobError: It cannot be used.
    """
    folder = agents_dir() / f"{name}-{run_id}"
    for number in itertools.count(1):
        path = folder / str(number)
        with suppress(InUse):
            return RunDirectory(path, job, resume=(path / JOB_FILE).exists(), run_id=run_id)
    raise AssertionError


def agents_dir() -> Path:
    """Directory of the agents that engines place on this host."""
    return state_dir() / "agents"


def state_dir() -> Path:
    """Directory for what outlives a command and belongs to no run directory."""
    if given := os.environ.get("XDG_STATE_HOME"):
        return Path(given) / "holdfast"
    with suppress(RuntimeError):  # the user has no entry and no HOME
        return Path.home() / ".local" / "state" / "holdfast"
    path = Path(tempfile.gettempdir()) / f"holdfast-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    if path.lstat().st_uid != os.getuid() or path.is_symlink():
        raise JobError(
            f"{path} belongs to another user; set XDG_STATE_HOME to a directory of yours"
        )
    return path


def _locked(path: Path) -> int:
    """The descriptor of a lock that the kernel lets go of when this process ends."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(fd, _MAX_HOLDER, 0).decode(errors="replace")
        os.close(fd)
        who = f", {holder}" if holder else ""
        raise InUse(
            f"{path.parent} is in use by another process{who}; wait for it or stop it"
        ) from None
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()} on {socket.gethostname()}".encode(), 0)
    return fd


def log_event(run_dir: Path, name: str, **fields: object) -> None:
    """Note in the log of events that `name` has happened now."""
    with json_lines.EventLog(run_dir / EVENTS) as log:
        log.event(name, **fields)


def restarts_in(run_dir: Path) -> int:
    """Restarts of all workers since the newest start of a run, as its log of events says.

    Numbers of generations would count more: also those that were over before any worker resumed.
    The agent of each host logs a generation before its workers resume, so they find their own start
    counted, unless the disk is full: then the log drops lines.
    """
    starts = set[int]()
    for entry in json_lines.read(run_dir / EVENTS):
        match entry.get("event"):
            case "run-started":
                starts.clear()
            case "generation-started":
                starts.add(entry["number"])
    return max(0, len(starts) - 1)  # it may have been stopped before any
