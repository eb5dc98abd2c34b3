"""What tells apart the results of two workers for a shard."""

import torch

from holdfast.worker.checks.shard_verifier import digest_of

GRADIENT, MASK = torch.tensor([1.0, 2.0]), torch.tensor([0.0, -torch.inf])


def test_gradients_that_are_not_finite_are_alike():
    odd = [torch.tensor([1.0, value]) for value in (torch.nan, -torch.nan, torch.inf)]
    assert len({digest_of(0.5, [each], [MASK]) for each in odd}) == 1
    assert digest_of(0.5, [GRADIENT], [MASK]) != digest_of(0.5, odd[:1], [MASK])


def test_a_buffer_with_infinity_hides_no_difference():
    assert digest_of(0.5, [GRADIENT], [MASK]) != digest_of(0.5, [GRADIENT + 1e-6], [MASK])
    assert digest_of(0.5, [GRADIENT], [MASK]) != digest_of(0.5, [GRADIENT], [MASK + 1])
