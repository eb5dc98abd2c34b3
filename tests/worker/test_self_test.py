"""The self-test of kernels: whether bits depend on where numbers lie and how many are computed."""

import pytest
import torch

from holdfast.arena.layout import ALIGNMENT
from holdfast.errors import JobError
from holdfast.worker.checks import self_test


def sum_of_halves(row, cut):
    return row[:cut].sum() + row[cut:].sum()


def by_address(inputs):
    """Sums as kernels do that begin with what is not aligned: where they cut depends on it."""
    off = inputs.data_ptr() % ALIGNMENT // inputs.element_size()
    return torch.stack([sum_of_halves(row.float(), 30 + off) for row in inputs])


def by_count(inputs):
    """Sums as kernels do that choose their blocks by the number of rows."""
    return torch.stack([sum_of_halves(row.float(), 30 + len(inputs)) for row in inputs])


@pytest.mark.parametrize(
    ("kernel", "alignment", "rows"),
    [(by_address, True, False), (by_count, False, True), (torch.neg, False, False)],
)
def test_a_kernel_that_rounds_by_alignment_or_by_rows_is_found(kernel, alignment, rows):
    assert self_test.alignment_sensitive(kernel) == alignment
    assert self_test.batch_sensitive(kernel) == rows


def test_a_host_whose_reduction_rounds_by_alignment_is_refused(monkeypatch):
    monkeypatch.setattr(self_test, "_REDUCTION", {"add": by_address, "mul": torch.neg})
    self_test.sensitive_kernels.cache_clear()
    with pytest.raises(JobError, match=r"torch\.add is not reproducible"):
        self_test.check_reduction()
    monkeypatch.undo()
    self_test.sensitive_kernels.cache_clear()
    self_test.check_reduction()
