"""Limits: file descriptors, processes and threads that this user may have, by taking them."""

from __future__ import annotations

import os
import resource
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final

from holdfast.doctor.finding import Finding, advice, fault, ok
from holdfast.doctor.needs import HostNeeds
from holdfast.linux.control_groups import groups
from holdfast.linux.supply import usable_cores

STACK_BYTES: Final = 64 << 10
"""Stack of the threads that are only there to be counted."""
MAX_TASKS: Final = 4096
"""Most threads that are started."""


def descriptors(needs: HostNeeds) -> Finding:
    """Check that a process can hold as many descriptors as one of the run's may need."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    try:
        source = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        taken.append(source)
        while len(taken) < needs.descriptors:
            taken.append(os.dup(source))
    except OSError as error:
        raise_to = "raise it by ulimit -n" if hard >= needs.descriptors else (
            "raise the hard limit (/etc/security/limits.conf, LimitNOFILE= or --ulimit nofile=)"
        )  # fmt: skip
        return fault(
            "descriptors",
            f"{len(taken)} more files could be opened, and a run needs {needs.descriptors} "
            f"({error.strerror}); the limit is {soft}, at most {hard}",
            f"{raise_to}, to 65536 for example",
        )
    finally:
        for each in taken:
            os.close(each)
    return ok("descriptors", f"{needs.descriptors} opened at once; the limit is {soft}")


def tasks(needs: HostNeeds) -> Finding:
    """Check that the processes and threads of a run can be started, by starting as many threads."""
    wanted = min(needs.tasks, MAX_TASKS)
    over = threading.Event()
    started = 0
    before = threading.stack_size(STACK_BYTES)
    threads = [threading.Thread(target=over.wait, daemon=True) for _ in range(wanted)]
    try:
        for each in threads:
            each.start()
            started += 1
    except (RuntimeError, MemoryError):
        return fault(
            "processes",
            f"{started} threads could be started, and a run needs {wanted}; {_task_limits()}",
            "raise the limit of processes (ulimit -u, TasksMax= or --pids-limit), or end others "
            "of this user",
        )
    finally:
        over.set()
        for each in threads[:started]:
            each.join()
        threading.stack_size(before)
    return ok("processes", f"{wanted} threads started at once; {_task_limits()}")


def cores(needs: HostNeeds) -> Finding:
    """Check that the workers have a core for each thread."""
    usable = usable_cores()
    allowed = len(os.sched_getaffinity(0))
    present = os.cpu_count() or allowed
    limits = [f"the affinity allows {allowed} of {present}"] if allowed < present else []
    limits += [f"the control group allows the time of {usable}"] if usable < allowed else []
    words = ", ".join([f"{usable} usable", *limits])
    each = needs.cores_per_worker
    share = f"{needs.workers} workers of {each}"
    if needs.workers * each > usable:
        return advice(
            "cores",
            f"{words}; {share} share them, so a step takes longer",
            f"set workers={max(1, usable // each) * needs.job.hosts}, or "
            "give the job more cores; the number of workers does not change the weights",
        )
    return ok("cores", f"{words}, for {share}")


def _task_limits() -> str:
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    user = "none" if soft == resource.RLIM_INFINITY else str(soft)
    groups_own = [text for group in groups("pids") if (text := _text(group / "pids.max")) != "max"]
    return f"limit of the user: {user}, of control groups: {', '.join(groups_own) or 'none'}"


def _text(path: Path) -> str:
    with suppress(OSError):
        return path.read_text(encoding="ascii").strip()
    return "max"
