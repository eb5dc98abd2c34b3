"""Shard work: the shard that a worker computes, and the partial sums of those that it has computed.

    begin_shard ─▶ CurrentShard ─▶ end_shard ─▶ PartialSums: a set for each node that is complete

Also the checks of what user code gives for a shard.
"""

from __future__ import annotations

import functools
import gc
import math
import weakref
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Final

import torch
from torch import nn
from torch.optim import Optimizer

from holdfast.arena.replica import Replica
from holdfast.collectives.gradient_sets import Gradients, GradientSet
from holdfast.collectives.reduction import check_summed, check_weight
from holdfast.collectives.slot import LOGGED, NUM_STATS, SlotLayout
from holdfast.core.step import tree
from holdfast.errors import JobError
from holdfast.worker.step.buffers import Buffers

_INTERVAL: Final = 16
"""Steps from one check to the next, apart from the first two: a check visits each node of the graph
of a loss, at a microsecond a node."""


_GRADIENT: Final = attrgetter("grad")
_IS_SPARSE: Final = attrgetter("is_sparse")


@dataclass(slots=True, kw_only=True)
class CurrentShard:
    """A shard from `begin_shard` to `end_shard`.

    Attributes:
        leaf: The leaf of the reduction tree that it fills.
        number: The partial sum that its gradient goes to.
        fired: True for each parameter that has a gradient; empty before the backward pass.
        weight: None until `backward` is called.
        discarded: True if its step was restarted meanwhile.
        logged: Means over the shard by name.
    """

    leaf: int
    number: int
    fired: list[bool] = field(default_factory=list)
    weight: float | None = None
    discarded: bool = False
    logged: dict[str, Any] = field(default_factory=dict)


class PartialSums:
    """The partial sums of one worker.

    Args:
        device: Device that computes the shards.
        rest: Layout of all of a sum but its gradients, which autograd allocates.
        num_sums: The most sums at a time.
        num_leaves: Leaves of the tree.

    Attributes:
        sets: The sums by number.
        num_leaves: The argument.
        table: The number of each node's sum, or ABSENT or EMPTY; see `core.step.tree`.
        tables_of_members: Tables that all members had when they resumed the step.
    """

    def __init__(
        self,
        device: torch.device,
        rest: SlotLayout,
        num_sums: int,
        num_leaves: int,
    ) -> None:
        self.sets = defaultdict[int, GradientSet](functools.partial(GradientSet, rest, device))
        self._num_sums = num_sums
        self.num_leaves = num_leaves
        self.clear()

    def clear(self) -> None:
        """Forget all sums, also those of other members."""
        for each in self.sets.values():
            each.gradients = []
        self.table = [tree.ABSENT] * tree.num_nodes(self.num_leaves)
        self.tables_of_members: list[list[int]] = []
        self._free = list(reversed(range(self._num_sums)))

    @property
    def has_capacity(self) -> bool:
        """True if there is space for any range of leaves."""
        return len(self._free) >= tree.max_partials(self.num_leaves)

    def covers(self, leaf: int) -> bool:
        """True if some member has accounted for a leaf."""
        node = tree.leaf(leaf, self.num_leaves)
        return any(tree.covers(each, node) for each in (self.table, *self.tables_of_members))

    def take(self) -> int:
        """Reserve a set for one more leaf; returns its number."""
        return self._free.pop()

    def give_back(self, number: int) -> None:
        """Return a set that was reserved and is not used."""
        self.sets[number].gradients = []
        self._free.append(number)

    def take_buffers(self, shard: CurrentShard, buffers: Buffers) -> None:
        """Take the values of the buffers after a shard to its set.

        Raises:
            JobError: A buffer changed its shape.
        """
        if shard.weight:
            values = self.sets[shard.number].rest
            values.used.copy_(buffers.write_to(values, shard.weight))

    def complete(self, shard: CurrentShard) -> None:
        """Account for a shard whose gradients and buffers are in its set, and add siblings.

        Raises:
            JobError: Siblings have logged other names.
        """
        if not shard.weight:
            self.give_back(shard.number)
            self.skip(shard.leaf)
            return
        self.sets[shard.number].write_logged(shard.logged)
        # The set is whole before the table says so.
        self._enter(shard.leaf, shard.number)

    def keep(self, shard: CurrentShard) -> None:
        """Account for a shard like `complete`, but leave its sum apart from its sibling's."""
        self.sets[shard.number].write_logged(shard.logged)
        self.table[tree.leaf(shard.leaf, self.num_leaves)] = shard.number

    def has(self, shard: CurrentShard) -> bool:
        """True if the sum of a shard is complete, and apart."""
        return self.table[tree.leaf(shard.leaf, self.num_leaves)] == shard.number

    def skip(self, leaf: int) -> None:
        """Account for a leaf that weighs nothing."""
        self._enter(leaf, tree.EMPTY)

    def mean(self, step: int) -> GradientSet:
        """The mean of all shards, of which this worker has computed each; the sums are used up.

        Args:
            step: Steps committed before.

        Raises:
            JobError: There is no gradient, or the weights do not add up to more than 0.
        """
        term = tree.reduction({0: self.table}, self.num_leaves)
        total = self._sum(check_summed(step, term))
        check_weight(step, total.weight)
        return total.to_mean()

    def _sum(self, term: tree.Term) -> GradientSet:
        if isinstance(term, tree.Partial):
            return self.sets[term.slot]
        left = self._sum(term.left)
        left.add(self._sum(term.right))
        return left

    def _enter(self, leaf: int, number: int) -> None:
        tree.carry(self.table, tree.leaf(leaf, self.num_leaves), number, self._merge)

    def _merge(self, left: int, right: int) -> None:
        # The left set takes the sum; the right one is free for the next shard.
        self.sets[left].add(self.sets[right])
        self._free.append(right)


class LossLeaves:
    """Checks which tensors the losses of one worker depend on.

    Only parameters of attached models are trained alike on all workers. Another one that user code
    trains would get the gradient of one worker's shards alone.

    Args:
        replica: Has the parameters that may be trained.
    """

    def __init__(self, replica: Replica) -> None:
        self._harmless = {id(each) for each in replica.model.parameters()}
        self._registered = {id(each) for each in replica.kept_parameters.values()}
        self._inputs: dict[int, tuple[weakref.ref[torch.Tensor], int]] = {}
        self._checks = 0
        self._step = -1

    def allow(self, tensors: Iterable[torch.Tensor]) -> None:
        """Let losses depend on further tensors, which live as long as the run."""
        self._harmless.update(map(id, tensors))

    def check(self, loss: torch.Tensor, step: int) -> None:
        """Check the loss of a shard, if it is due in this step.

        Raises:
            JobError: It depends on a tensor that is trained and not part of a model.
        """
        self._checks += step != self._step
        self._step = step
        if self._checks > 2 and step % _INTERVAL:
            return
        self._inputs = {i: each for i, each in self._inputs.items() if each[0]() is not None}
        for leaf in _leaves_of(loss):
            if id(leaf) not in self._harmless and self._is_trained(leaf):
                raise JobError(
                    f"the loss depends on a tensor of shape {tuple(leaf.shape)} that requires a "
                    "gradient and that no model has; make it a parameter of the model given to "
                    "session.attach, or freeze it with requires_grad_(False) if it is not trained"
                )

    def _is_trained(self, leaf: torch.Tensor) -> bool:
        """True if a leaf is not only an input, such as one whose gradient a penalty needs."""
        if id(leaf) in self._registered:  # such as an average that is not called under `no_grad`
            self._harmless |= self._registered - _held_by_optimizers()
            return id(leaf) not in self._harmless
        # An input does not outlive its step.
        before, step = self._inputs.setdefault(id(leaf), (weakref.ref(leaf), self._step))
        if before() is not leaf:  # it had the same address
            self._inputs[id(leaf)] = (weakref.ref(leaf), self._step)
        return isinstance(leaf, nn.Parameter) or (before() is leaf and step != self._step)


def check_loss(loss: object) -> None:
    """Raises: JobError: `loss` is not a scalar that depends on the model."""
    if not isinstance(loss, torch.Tensor):
        raise JobError(
            f"the loss must be a tensor that depends on the model's parameters, not a "
            f"{type(loss).__name__}; remove .item() or float()"
        )
    if loss.dim() != 0 or not loss.requires_grad:
        raise JobError(
            f"the loss must be a scalar that depends on the model's parameters, not a tensor "
            f"of shape {list(loss.shape)} with requires_grad={loss.requires_grad}; "
            "take the mean over the shard's samples"
        )


def checked_weight(weight: Any) -> float:
    """The weight that user code gives a shard.

    Raises:
        JobError: It is negative, or no number.
    """
    try:
        value = float(weight)
    except (TypeError, ValueError, RuntimeError):
        value = math.nan
    if not 0 <= value < math.inf:
        raise JobError(f"session.backward needs a weight that is a number from 0, not {weight!r}")
    return value


def unscaled_gradients(parameters: Iterable[torch.Tensor], scale: int) -> Gradients:
    """The gradients that autograd has computed of a loss times `scale`, by parameter: dense, and
    with all bits of them in memory.
    """
    gradients: Gradients = list(map(_GRADIENT, parameters))
    present = [gradient for gradient in gradients if gradient is not None]
    if any(map(_IS_SPARSE, present)) or any(map(torch.is_conj, present)):
        gradients = [None if each is None else dense(each) for each in gradients]
        present = [gradient for gradient in gradients if gradient is not None]
    # A power of two: the division changes no bit, unless a gradient is too small for float32.
    if scale != 1 and present:
        torch._foreach_mul_(present, 1 / scale)
    return gradients


def dense(gradient: torch.Tensor) -> torch.Tensor:
    """A gradient that is dense, and with all bits of it in memory."""
    return gradient.coalesce().to_dense() if gradient.is_sparse else gradient.resolve_conj()


def add_logged(logged: dict[str, Any], values: Mapping[str, Any]) -> None:
    """Add what user code logs for a shard: numbers, or tensors of float64 with one element, which
    stay on their device.

    Raises:
        JobError: One is no number, or there are more than fit.
    """
    for name, value in values.items():
        try:
            if isinstance(value, torch.Tensor) and not value.is_complex():
                # A copy, since user code may change its own; to read it would wait for the device.
                logged[name] = value.detach().to(torch.float64, copy=True).view(())
            else:
                logged[name] = float(value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise JobError(
                f"session.log({name}=…) needs one number, the mean over the shard's samples: "
                f"{error}"
            ) from None
    if len(logged) > NUM_STATS - LOGGED:
        raise JobError(f"a step can log {NUM_STATS - LOGGED} values, not {len(logged)}")


def _leaves_of(loss: torch.Tensor) -> list[torch.Tensor]:
    nodes = [loss.grad_fn]
    seen = set(nodes)
    leaves = []
    for node in nodes:  # it grows
        if isinstance(node, torch._C._functions.AccumulateGrad):  # type: ignore[attr-defined]
            leaves.append(node.variable)
        for each, _ in () if node is None else node.next_functions:
            if each not in seen:
                seen.add(each)
                nodes.append(each)
    return leaves


def _held_by_optimizers() -> set[int]:
    optimizers = (each for each in gc.get_objects() if issubclass(type(each), Optimizer))
    return {id(p) for o in optimizers for group in o.param_groups for p in group["params"]}
