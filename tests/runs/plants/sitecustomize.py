"""Plants a bug into workers, for the exactness fuzzer to find.

Python imports a module of this name before anything else, if it finds one. The test puts this
directory on the path and names the bug in the environment; the fork server is patched, and every
worker is a fork of it.
"""

import os
import sys


def alignment():
    """Blocks begin where tensors end, and the norm is rounded by the alignment of a block."""
    from holdfast.collectives import exact, slot

    cut = slot._cut

    def square(block):
        wide = block.double() if block.data_ptr() % 64 == 0 else block.float()
        return float(wide.square().sum())

    slot._cut = lambda count, spans, _aligned: cut(count, spans, 1)
    slot.square = exact.square = square


def arrival():
    """Partial sums are added in the order of the ranks, not along the tree."""
    from holdfast.core import tree

    reduction = tree.reduction

    def leaves(term):
        return [term] if isinstance(term, tree.Partial) else leaves(term.left) + leaves(term.right)

    def in_order(published, num_leaves):
        found = reduction(published, num_leaves)
        if found is None:
            return None
        total, *others = sorted(leaves(found), key=lambda each: (each.rank, each.slot))
        for other in others:
            total = tree.Add(total, other)
        return total

    tree.reduction = in_order


def buffers():
    """What a model binds a buffer to is lost: the update stays on the worker that made it."""
    from holdfast.arena.replica import Replica

    Replica.capture_buffers = lambda self: None


def chance():
    """The random numbers of a shard depend on who computes it."""
    from holdfast.worker.step import Stepper

    begin = Stepper.begin_shard

    def begin_shard(self, leaf, seed):
        begin(self, leaf, seed + self._group.rank)

    Stepper.begin_shard = begin_shard


def scheduler():
    """What the session is to keep is not part of the state."""
    from holdfast.worker.session import Session

    Session.keep = lambda self, name, kept: kept


if "holdfast.agent.fork_server" in sys.orig_argv:
    globals()[os.environ["HOLDFAST_PLANT"]]()
