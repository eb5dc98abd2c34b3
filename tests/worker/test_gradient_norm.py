"""The norm of a gradient on a device."""

import math

import pytest
import torch

from holdfast.worker.step.gradient_norm import norm_of_norms

DTYPES = [torch.float32, torch.bfloat16, torch.complex64, torch.float64]


def gradients_of(dtypes):
    drawn = torch.Generator().manual_seed(0)
    return [torch.randn(5, 3, generator=drawn).to(each) for each in dtypes]


@pytest.mark.parametrize("dtypes", [DTYPES, DTYPES[:1] * 4], ids=["several", "one"])
def test_a_missing_gradient_counts_as_zero_to_the_last_bit(dtypes):
    for missing in range(len(dtypes)):
        gradients = gradients_of(dtypes)
        gradients[missing] = None
        zeros = [
            g if g is not None else torch.zeros(5, 3, dtype=dtypes[missing]) for g in gradients
        ]
        total, norms = norm_of_norms(gradients)
        same, same_norms = norm_of_norms(zeros)
        assert torch.equal(total, same)
        assert norms() == same_norms()
        assert norms()[missing] == 0
        assert math.isclose(total, math.hypot(*norms()))


def test_no_gradient_has_the_norm_0():
    total, norms = norm_of_norms([None, None])
    assert (float(total), norms()) == (0, [0, 0])
