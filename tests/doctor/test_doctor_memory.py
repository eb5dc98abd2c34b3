"""What doctor says of device memory that other processes map."""

import torch

from holdfast.arena.device.memory import MemfdPeer
from holdfast.doctor.finding import Outcome
from holdfast.doctor.needs import HostNeeds
from holdfast.doctor.torch_probe import why_not_mapped
from holdfast.doctor.torch_report import Gpu, TorchReport, findings
from holdfast.job import load

CPU = torch.device("cpu")


def said(tmp_path, **facts):
    """The finding of a host with a GPU."""
    job = load.check({"name": "digits", "workers": 1, **facts.pop("keys", {})}, where="test")
    needs = HostNeeds.of(job, 1, tmp_path, {})
    gpu = Gpu(name="H200", free_bytes=1 << 30, total_bytes=1 << 30)
    report = TorchReport(
        torch="2", gpus=(gpu,), numerics={"capability": "AVX2"}, kernels={}, **facts
    )
    return {each.check: each for each in findings(report, needs)}.get("device memory")


def test_memory_that_all_devices_read_is_mapped(tmp_path):
    assert why_not_mapped([CPU, CPU]) == ""
    found = said(tmp_path)
    assert (found.outcome, "exchange=mapped" in found.found) == (Outcome.OK, True)
    assert said(tmp_path, keys={"device": "cpu"}) is None


def test_memory_that_reads_wrong_or_not_is_staged(monkeypatch, tmp_path):
    read = MemfdPeer.read

    def misread(self, start, target):
        read(self, start, target)
        target[7] += 1

    monkeypatch.setattr(MemfdPeer, "read", misread)
    wrong = why_not_mapped([CPU])
    assert wrong == "cpu reads other bytes from cpu than were written there"
    found = said(tmp_path, not_mapped=wrong)
    assert found.outcome == Outcome.ADVICE
    assert wrong in found.found
    assert "exchange=staged" in found.found

    def refuse(*_):
        raise OSError("no access")

    monkeypatch.setattr(MemfdPeer, "__init__", refuse)
    assert why_not_mapped([CPU]) == "no access"
