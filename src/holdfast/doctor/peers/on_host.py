"""On host: the script that checks one host of several, and its links to the others.

It runs as `python -m holdfast.doctor.peers.on_host WANTED`, as a worker of a script job without
process groups, and prints a `HostReport` as a line of JSON: without its links, and with them.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path
from typing import Final

from holdfast.doctor.disk import home_of
from holdfast.doctor.finding import Finding
from holdfast.doctor.host import examine
from holdfast.doctor.needs import HostNeeds
from holdfast.doctor.peers.links import Links
from holdfast.doctor.peers.report import HostReport, Wanted
from holdfast.doctor.torch_report import TorchReport
from holdfast.doctor.trial import Trial
from holdfast.doctor.versions import installed
from holdfast.errors import HoldfastError
from holdfast.hardware.host import profile_here
from holdfast.job import load
from holdfast.job.train_job import TrainJob

PEERS: Final = "HOLDFAST_PEERS"
"""The variable with the addresses of all workers; see `worker.script.runner`."""


def main() -> None:
    """Check this host and its links."""
    wanted = Wanted.model_validate_json(sys.argv[1])
    peers = json.loads(os.environ[PEERS])
    rank = int(os.environ["RANK"])
    addresses = {int(each): at for each, at in peers["addresses"].items()}
    if len(addresses) < 2:
        _tell(_report(wanted, ""))
        return
    listener = socket.socket(fileno=peers["listener"])
    with Links(rank, addresses, listener, bytes.fromhex(peers["key"])) as links:
        report = _report(wanted, addresses[rank])
        _tell(report)
        found = tuple(links.measure())
        _tell(report.model_copy(update={"links": found, "heard": tuple(sorted(links.heard))}))


def _report(wanted: Wanted, address: str) -> HostReport:
    run_dir = Path(os.environ["HOLDFAST_RUN_DIR"])
    if not wanted.job:
        return _profiled(Path(wanted.path) if wanted.path else home_of(run_dir))
    job = load.of_text(wanted.job, "of the check")
    assert isinstance(job, TrainJob)
    needs = HostNeeds(
        job=job,
        workers=job.workers_per_host,
        run_dir=run_dir,
        ports={},
        is_first=run_dir == Path(wanted.run_dir),
    )
    return _examined(needs, address)


def _examined(needs: HostNeeds, address: str) -> HostReport:
    """Findings of this host on itself."""
    found = list[Finding]()
    report = None
    weights = ""
    for each in examine(needs, address.rpartition(":")[0], None):
        match each:
            case Finding():
                found.append(each)
            case TorchReport():
                report = each
            case Trial():
                weights = each.weights
    return HostReport(
        host=socket.gethostname(),
        address=address,
        versions=installed(),
        torch=report,
        findings=tuple(found),
        weights=weights,
    )


def _profiled(folder: Path) -> HostReport:
    """Profile of the hardware of this host."""
    host = socket.gethostname()
    try:
        return HostReport(host=host, profile=profile_here(folder))
    except HoldfastError as error:
        return HostReport(host=host, problem=str(error))


def _tell(report: HostReport) -> None:
    print(report.model_dump_json(), flush=True)


if __name__ == "__main__":
    main()
