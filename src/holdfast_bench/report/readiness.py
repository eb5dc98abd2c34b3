"""Readiness: which promises are proven, and by what.

Nothing is proven without its test, and nothing that rests on a measurement without the stored
result that says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Literal

from holdfast_bench.report.results import Results, Row

Status = Literal["proven", "emulated", "in part", "not yet proven"]
SIGNS: Final[dict[Status, str]] = {
    "proven": "✓", "emulated": "●", "in part": "●", "not yet proven": "–",
}  # fmt: skip
ROOT: Final = Path(__file__).parents[3]
"""The repository, whose tests prove what this report says."""
Evidence = Callable[[Results], tuple[Status, str]]
"""What stored results say: how far something is shown, and by what."""


@dataclass(frozen=True, slots=True)
class Promise:
    """One promise.

    Attributes:
        name: What is promised.
        test: The test that shows it, as a path in the repository.
        evidence: What it rests on apart from the test; None if the test is enough.
    """

    name: str
    test: str
    evidence: Evidence | None = None


@dataclass(frozen=True, slots=True)
class Aspect:
    """A promise, and how far it is shown.

    Attributes:
        name: What is promised.
        status: How far that is shown.
        shown_by: The test, and what stored results say; what is missing otherwise.
    """

    name: str
    status: Status
    shown_by: str


def aspects(results: Results, root: Path = ROOT) -> list[Aspect]:
    """Every promise with its status; `root` has the tests."""
    return [_aspect(each, results, root) for each in PROMISES]


def _aspect(promise: Promise, results: Results, root: Path) -> Aspect:
    if not (root / promise.test).exists():
        return Aspect(promise.name, "not yet proven", f"there is no `{promise.test}` here")
    status: Status = "proven"
    said = ""
    if promise.evidence is not None:
        status, said = promise.evidence(results)
    return Aspect(promise.name, status, f"`{promise.test}`{said and f': {said}'}")


def _on_one_machine(_: Results) -> tuple[Status, str]:
    """Tests of several hosts, which are emulated."""
    return "emulated", "hosts of one machine"


def _stored(
    benchmark: str, wanted: Row, holds: Callable[[Row], bool], status: Status, results: Results
) -> tuple[Status, str]:
    """What is measured, if there are such rows, and all show it."""
    rows = results.rows(benchmark, **wanted)
    if rows and all(map(holds, rows)):
        return status, f"`{benchmark}.json`"
    return "not yet proven", f"no stored result in `{benchmark}.json` shows it"


def _on_gpu(file: str, num_gpus: int, results: Results) -> tuple[Status, str]:
    """Outcomes of the checks of `tests/gpu/run` in a file, on so many GPUs at least."""
    stored = results.by_name.get("gpu-checks")
    whole = results.rows("gpu-checks", check=file)
    gpus = stored.conditions.gpus if stored is not None else ()
    if not whole or len(gpus) < num_gpus:
        several = f" on {num_gpus} GPUs" if num_gpus > 1 else ""
        return "not yet proven", f"no run of it{several} in `gpu-checks.json`"
    checks = results.rows("gpu-checks", section=whole[0]["section"])
    outcomes = [row["outcome"] for row in checks if row is not whole[0]]
    passed = outcomes.count("passed")
    said = f"{passed} of {len(outcomes)} checks passed on {gpus[0]}, `gpu-checks.json`"
    outcome = whole[0]["outcome"]
    if not passed or "failed" in (outcome, *outcomes):
        return "not yet proven", said
    return ("proven", said) if outcome == "passed" else ("in part", f"{said}; {outcome}")


def _speed_on_gpu(results: Results) -> tuple[Status, str]:
    stored = results.by_name.get("gpu")
    if stored is not None and stored.conditions.gpus:
        return "proven", f"on {stored.conditions.gpus[0]}, `gpu.json`"
    if (results.folder / "gpu.txt").exists():
        return "in part", "`gpu.txt` has the output of a call, and there is no `gpu.json`"
    return "not yet proven", "there is no `gpu.json` of a GPU"


def _exists(_: Row) -> bool:
    return True


def _passed(row: Row) -> bool:
    return bool(row["passed"])


_RUNS: Final = "tests/runs/test_{}.py".format
_INTEGRATIONS: Final = "tests/integrations/test_{}.py".format
_GPU: Final = "tests/gpu/test_gpu_{}.py".format


def _gpu(name: str, subject: str, num_gpus: int = 1) -> Promise:
    return Promise(name, _GPU(subject), partial(_on_gpu, f"test_gpu_{subject}.py", num_gpus))


PROMISES: Final = (
    Promise("Same weights for any number of workers", _RUNS("any_world_size")),
    Promise("Worker killed, hung or failing", _RUNS("recovery")),
    Promise("All workers restart from a checkpoint", _RUNS("restart")),
    Promise("Coordinator or agent killed", _RUNS("control_failures")),
    Promise("Damaged checkpoint, full disk", _RUNS("saving_in_runs")),
    Promise("Workers that are added and leave", _RUNS("scaled_runs")),
    Promise("Rows of a model divided over workers", _RUNS("zero")),
    Promise("Layers of a model divided over workers", _RUNS("pipeline")),
    Promise("Frozen weights once a host", _RUNS("frozen_weights")),
    Promise("Scripts for torchrun", _RUNS("script_failures")),
    Promise("Trainers of Hugging Face and TRL", _INTEGRATIONS("transformers")),
    Promise("Lightning", _INTEGRATIONS("lightning")),
    Promise("Accelerate", _INTEGRATIONS("accelerate")),
    Promise("Searches for hyperparameters", "tests/tuning/test_search.py"),
    Promise(
        "All-reduces of every algorithm", _RUNS("collectives"),
        partial(_stored, "collectives", {}, lambda row: row["wrong"] == 0, "proven"),
    ),
    Promise(
        "Compressed gradients", _RUNS("compressed_runs"),
        partial(_stored, "compression", {"method": "topk"}, _exists, "emulated"),
    ),
    Promise(
        "Workers of different speed", _RUNS("balance"),
        partial(_stored, "balance", {"system": "dynamic"}, _exists, "emulated"),
    ),
    Promise(
        "Several hosts, a lost host", _RUNS("namespaces"),
        partial(_stored, "scenarios", {"scenario": "host-lost"}, _passed, "emulated"),
    ),
    Promise("A coordinator that moves", _RUNS("moved_coordinator"), _on_one_machine),
    Promise("Hosts that are added and leave", _RUNS("scaled_hosts"), _on_one_machine),
    Promise("Rows of a model divided over hosts", _RUNS("sharded_hosts"), _on_one_machine),
    Promise("Hosts of different numerics", _RUNS("hosts"), _on_one_machine),
    Promise(
        "Scaling to 16 hosts", "tests/bench/test_emulate.py",
        partial(_stored, "emulate", {"hosts": 16, "measure": "emulated"}, _exists, "emulated"),
    ),
    _gpu("One GPU, shared by workers", "weights"),
    _gpu("Workers on a GPU killed", "kills"),
    _gpu("Same bits of every model on a GPU", "strict"),
    _gpu("Hugging Face's Trainer on a GPU", "trainer"),
    _gpu("Steps that do not wait for the GPU", "steady"),
    _gpu("Device memory that outlives its worker", "memory"),
    Promise("Speed of one worker on a GPU", _GPU("speed"), _speed_on_gpu),
    _gpu("Several GPUs, NCCL", "nccl", num_gpus=2),
    _gpu("Mistral-7B on a GPU", "qlora"),
)  # fmt: skip
