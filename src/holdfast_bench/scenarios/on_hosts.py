"""The scenario of a lost host, on two hosts that are network namespaces of this machine."""

from __future__ import annotations

from typing import Any, Final

from holdfast.rundir import json_lines
from holdfast.rundir.run_directory import RECOVERIES, RESULT
from holdfast_bench.on_hosts.namespaces import UNSHAPED
from holdfast_bench.on_hosts.runs import running
from holdfast_bench.scenarios.scenario import CUT_STEP, Outcome, outcome

HOSTS: Final = 2


def run_scenario(keys: dict[str, Any]) -> Outcome:
    """Train on two hosts with a worker each, and cut the second off.

    Args:
        keys: Of the job, without those about hosts.

    Raises:
        HoldfastError: There can be no hosts, or the run does not end.
    """
    with running(HOSTS, keys["workers"] // HOSTS, UNSHAPED, keys, "tls") as run:
        run.wait(lambda: len(run.commits()) >= CUT_STEP, f"step {CUT_STEP}")
        run.made.cut(HOSTS)
        run_dir = run.records.run_dir
        run.wait((run_dir / RESULT).exists, "the end of the run")
        recoveries = list(json_lines.read(run_dir / RECOVERIES))
        return outcome(run.records.events(), recoveries, run.records.result()["weights_sha256"])
