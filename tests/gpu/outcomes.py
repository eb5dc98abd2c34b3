"""A plugin of pytest that appends the outcome of each test to the file HOLDFAST_CHECKED_OUTCOMES
names, a line of JSON each, as soon as it is known.
"""

import json
import os
from pathlib import Path


def pytest_runtest_logreport(report):
    if "PYTEST_XDIST_WORKER" in os.environ or (report.passed and report.when != "call"):
        return
    row = {"check": report.nodeid.partition("::")[2], "outcome": report.outcome}
    known = {name: value for name, value in report.user_properties if name != "cpu_s"}
    row |= {"seconds": round(report.duration, 1), **known}
    if report.skipped:
        row["reason"] = report.longrepr[2].removeprefix("Skipped: ")
    elif report.failed:
        row["reason"] = str(report.longrepr).splitlines()[-1][:300]
    with Path(os.environ["HOLDFAST_CHECKED_OUTCOMES"]).open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
