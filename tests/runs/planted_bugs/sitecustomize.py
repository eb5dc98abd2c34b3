"""Plants a bug into workers, for the exactness fuzzer to find.

Python imports a module of this name before anything else, if it finds one. The test puts this
directory on the path and names the bug in the environment; the fork server is patched, and every
worker is a fork of it.
"""

import os
import sys


def patch(owner, name, plant):
    """Put what `plant` makes of an attribute in its place; it must be there."""
    setattr(owner, name, plant(getattr(owner, name)))


def alignment():
    """Blocks begin where tensors end, and the norm is rounded by the alignment of a block."""
    from holdfast.collectives import exact, slot

    def square(block):
        wide = block.double() if block.data_ptr() % 64 == 0 else block.float()
        return float(wide.square().sum())

    patch(slot, "_cut", lambda cut: lambda count, spans, aligned: cut(count, spans, 1))
    patch(slot, "square", lambda _: square)
    patch(exact, "square", lambda _: square)


def arrival():
    """Partial sums are added in the order of the ranks, not along the tree."""
    from holdfast.core.step import tree

    def leaves(term):
        return [term] if isinstance(term, tree.Partial) else leaves(term.left) + leaves(term.right)

    def plant(reduction):
        def in_order(published, num_leaves):
            found = reduction(published, num_leaves)
            if found is None:
                return None
            total, *others = sorted(leaves(found), key=lambda each: (each.rank, each.slot))
            for other in others:
                total = tree.Add(total, other)
            return total

        return in_order

    patch(tree, "reduction", plant)


def buffers():
    """Of the shards that a worker computes in a step, only the first updates the buffers."""
    from holdfast.worker.step.buffers import Buffers

    written = set()

    def write(write_to):
        def first_only(self, slot, weight):
            if id(self) in written:
                self.begin()
            written.add(id(self))
            return write_to(self, slot, weight)

        return first_only

    def commit(take):
        def taken(self, *values):
            written.clear()
            return take(self, *values)

        return taken

    patch(Buffers, "write_to", write)
    patch(Buffers, "take", commit)


def chance():
    """The random numbers of a shard depend on the worker that computes it."""
    from holdfast.worker.step.tree import TreeStepper

    def plant(begin):
        def begin_unlike(self, leaf, seed, **options):
            begin(self, leaf, seed + self._group.rank, **options)

        return begin_unlike

    patch(TreeStepper, "begin_shard", plant)


def scheduler():
    """What the session is to keep is saved and not restored."""
    from holdfast.worker.user_state.user_state import UserState

    def forgetful(restore):
        return lambda self, saved: restore(self, {**saved, "kept": self.capture()["kept"]})

    patch(UserState, "restore", forgetful)


if "holdfast.launch.fork_server" in sys.orig_argv:
    globals()[os.environ["HOLDFAST_BUG"]]()
