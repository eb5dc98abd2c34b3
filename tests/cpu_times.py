"""CPU time of tests, with that of all processes that they start."""

from __future__ import annotations

import resource
import time

import pytest

import zygote_client

SLOWEST = 10


class CpuTimes:
    """Measures each test, and prints the sum and the slowest tests.

    Args:
        is_worker: Whether this process runs tests for another one, which prints.
    """

    def __init__(self, *, is_worker: bool) -> None:
        self._is_worker = is_worker
        self._client: zygote_client.Client | None = None
        self._tests: dict[str, float] = {}
        self._processes_s = 0.0

    def use(self, client: zygote_client.Client) -> None:
        """Count what a zygote forks for this process."""
        self._client = client

    def _now_s(self) -> float:
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        forked_s = self._client.cpu_s() if self._client else 0.0
        exec_s = ended.ru_utime + ended.ru_stime + zygote_client.living_cpu_s()
        return time.process_time() + exec_s + forked_s

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        began_s = self._now_s()
        item.user_properties.append(("cpu_s", lambda: self._now_s() - began_s))
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item, call):
        report = yield
        report.user_properties = [
            (name, value() if callable(value) else value) for name, value in report.user_properties
        ]
        return report

    def pytest_runtest_logreport(self, report):
        if report.when == "teardown":
            self._tests[report.nodeid] = dict(report.user_properties).get("cpu_s", 0.0)

    def pytest_sessionfinish(self, session):
        if self._is_worker:
            session.config.workeroutput["cpu_s"] = self._now_s()
        else:
            self._processes_s += self._now_s() if not self._processes_s else time.process_time()

    def pytest_testnodedown(self, node, error):
        self._processes_s += getattr(node, "workeroutput", {}).get("cpu_s", 0.0)

    def pytest_terminal_summary(self, terminalreporter):
        if not self._tests:
            return
        total_s = self._processes_s
        terminalreporter.section("CPU time")
        terminalreporter.line(
            f"{total_s:.0f} s in all, {sum(self._tests.values()):.0f} s of it in tests"
        )
        slowest = sorted(self._tests.items(), key=lambda test: -test[1])[:SLOWEST]
        for name, cpu_s in slowest:
            terminalreporter.line(f"{cpu_s:6.1f} s {name}")
