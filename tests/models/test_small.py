"""Small networks: their pooling is that of PyTorch, for images of every size."""

import pytest
import torch
import torch.nn.functional as F

from holdfast.models.small import AveragePool


@pytest.mark.parametrize("size", [(8, 8), (28, 28), (17, 30), (3, 5)])
def test_the_average_of_each_cell_is_that_of_pytorch(size):
    images = torch.randn(2, 3, *size, dtype=torch.float64, requires_grad=True)
    ours = AveragePool(4)(images)
    theirs = F.adaptive_avg_pool2d(images, 4)
    torch.testing.assert_close(ours, theirs)
    weights = torch.randn_like(ours)
    torch.testing.assert_close(
        *(torch.autograd.grad((each * weights).sum(), images) for each in (ours, theirs))
    )
