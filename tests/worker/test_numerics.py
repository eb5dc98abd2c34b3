"""Numerics: what ranks are compared by, and the errors of operations that are not deterministic."""

from dataclasses import dataclass

import pytest
import torch

from holdfast.errors import DataError, JobError
from holdfast.worker import devices
from holdfast.worker.checks.numerics import numerics_of, values_of_gpu

VERSIONS = {"driver": "580.65", "cuda": "13.0", "cudnn": "91300", "cublas": "13.1.0"}


@dataclass
class H200:
    name: str = "NVIDIA H200"
    multi_processor_count: int = 132
    major: int = 9
    minor: int = 0


def test_values_of_a_gpu():
    assert values_of_gpu(H200(), VERSIONS) == {
        "gpu": "NVIDIA H200, 132 SMs, capability 9.0",
        **VERSIONS,
    }


@pytest.mark.parametrize(
    ("properties", "versions", "name"),
    [
        ({"name": "NVIDIA H100"}, {}, "gpu"),
        ({"name": "NVIDIA H200 MIG 1g.18gb"}, {}, "gpu"),
        ({"multi_processor_count": 114}, {}, "gpu"),
        ({"minor": 1}, {}, "gpu"),
        *(({}, {name: "other"}, name) for name in VERSIONS),
    ],
)
def test_each_fact_of_a_gpu_counts(properties, versions, name):
    usual = values_of_gpu(H200(), VERSIONS)
    other = values_of_gpu(H200(**properties), {**VERSIONS, **versions})
    assert [key for key in usual if usual[key] != other[key]] == [name]


def test_a_changed_precision_of_products_counts():
    before = torch.backends.mkldnn.matmul.fp32_precision
    usual = numerics_of("exact", None, torch.device("cpu"))
    try:
        torch.backends.mkldnn.matmul.fp32_precision = "bf16"
        other = numerics_of("exact", None, torch.device("cpu"))
    finally:
        torch.backends.mkldnn.matmul.fp32_precision = before
    assert [key for key in usual if usual[key] != other[key]] == ["fp32_precision"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "index_copy_cuda does not have a deterministic implementation, but you set ...",
            "index_copy_cuda has no deterministic kernel here, .*; use another operation, or set",
        ),
        (
            "Deterministic behavior was enabled with either `x`, but ... because it uses CuBLAS",
            "CuBLAS has no deterministic kernel here, .*; leave CUBLAS_WORKSPACE_CONFIG as it is",
        ),
    ],
)
def test_an_error_of_the_deterministic_mode_names_the_operation_and_the_key(text, message):
    for error in (RuntimeError(text), DataError(f"reading Data failed with RuntimeError: {text}")):
        explained = devices.explain(error)
        assert isinstance(explained, JobError)
        with pytest.raises(JobError, match=f"^{message}"):
            raise explained


def test_another_error_is_left_alone():
    error = RuntimeError("mat1 and mat2 shapes cannot be multiplied")
    assert devices.explain(error) is error
