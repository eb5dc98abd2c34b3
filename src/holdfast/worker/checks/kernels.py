"""Kernels: a digest of what this CPU computes, to tell whether another CPU computes the same.

The kernels that models spend their time in run once over fixed inputs, in sizes that are multiples
of a vector and in odd ones. Two hosts with equal digests count as computing the same bits, also if
their CPUs are of different makers. It takes about 0.1 s.

The square root has a digest of its own, because no setting makes it portable: for float32 and
float64 tensors torch calls MKL, which starts from the CPU's approximation of 1/sqrt(x) and does not
always round correctly. Adam uses it, unless it is fused.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterable, Iterator

import torch
import torch.nn.functional as F

_SIZES = ((64, 128, 96), (33, 77, 51), (7, 300, 5))


@functools.cache
def kernel_digests() -> dict[str, str]:
    """16 hexadecimal digits of a SHA-256 over results: of `sqrt`, and of all other `kernels`."""
    numbers = torch.linspace(0.1, 3.0, 1000)
    return {
        "kernels": _digest(_results()),
        "sqrt": _digest((str(n.dtype), n.sqrt()) for n in (numbers, numbers.double())),
    }


def _digest(results: Iterable[tuple[str, torch.Tensor]]) -> str:
    hasher = hashlib.sha256()
    for name, result in results:
        hasher.update(f"{name}\0{list(result.shape)}\0".encode())
        hasher.update(result.detach().contiguous().view(-1).view(torch.uint8).numpy().data)
    return hasher.hexdigest()[:16]


def _results() -> Iterator[tuple[str, torch.Tensor]]:
    """The name and the result of each kernel, forward and backward."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).requires_grad_()

    for m, k, n in _SIZES:
        a = draw(m, k)
        b = draw(k, n)
        bias = draw(n)
        yield from _both("addmm", lambda a, b, bias: torch.addmm(bias, a, b), a, b, bias)
        for each in (F.gelu, F.silu, torch.tanh, torch.exp, torch.sigmoid, torch.rsqrt):
            yield from _both(each.__name__, each, a if each is not torch.rsqrt else _positive(a))
        yield from _both("softmax", lambda a: a.softmax(-1), a)
        yield from _both("log_softmax", lambda a: a.log_softmax(-1), a)
        yield from _both("layer_norm", lambda a: F.layer_norm(a, a.shape[-1:]), a)
        yield from _both("sum", lambda a: a.sum(0), a)
        yield from _both("batch_norm", lambda a: F.batch_norm(a, None, None, training=True), a)
        yield "dot", torch.dot(a.detach().flatten(), a.detach().flatten())
    for channels, size in ((8, 16), (3, 15)):
        x = draw(4, channels, size, size)
        weight = draw(10, channels, 3, 3)
        yield from _both("conv2d", lambda x, w: F.conv2d(x, w, padding=1), x, weight)
        yield from _both("max_pool2d", lambda x: F.max_pool2d(x, 2), x)
    q, key, value = (draw(2, 4, 17, 16) for _ in range(3))
    yield from _both("attention", F.scaled_dot_product_attention, q, key, value)
    low = draw(33, 64).bfloat16().detach().requires_grad_()
    yield from _both(
        "bf16 linear", F.linear, low, draw(48, 64).bfloat16().detach().requires_grad_()
    )


def _positive(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor.detach().abs() + 0.1).requires_grad_()


def _both(
    name: str, kernel: Callable[..., torch.Tensor], *inputs: torch.Tensor
) -> Iterator[tuple[str, torch.Tensor]]:
    result = kernel(*inputs)
    yield name, result
    for gradient in torch.autograd.grad(result.square().sum(), inputs):
        yield f"{name} backward", gradient
