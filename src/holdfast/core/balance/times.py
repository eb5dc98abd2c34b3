"""Times: what a worker measures in a step, and shares with the others."""

from __future__ import annotations

from typing import NamedTuple


class StepTimes(NamedTuple):
    """Measurements of one worker since it last shared its times.

    Shards and the rest are of this step. Waits, the reduction and what follows it are of the step
    before, since times are shared before the sum of a step.

    Attributes:
        shards_ns: In its shards: `data_ns`, `forward_ns`, `backward_ns` and `collect_ns`.
        rest_ns: In the rest of the step, without waits for other workers.
        plan: A digest of the plan that it has followed: all must have the same.
        processor_ns: Time that its thread ran in shards.
        throttled_ns: Time that a processor limit of its control group has stopped it, and for how
            long heat or a power limit has slowed down its GPU.
        memory_permille: The part of the memory in use, of its host or its GPU.
        link_host, link_ns: The host whose partial sums it has waited for longest, and how long.
        data_ns: Waiting for samples.
        forward_ns: In user code.
        backward_ns: In autograd.
        collect_ns: Adding the gradients of its own shards.
        wait_ns: Waiting for the other workers.
        reduce_ns: Adding its part of the partial sums of all.
        wait_reduce_ns: Waiting for the others' parts, or for the network.
        optimizer_ns, evaluate_ns, checkpoint_ns: In these.
    """

    shards_ns: int = 0
    rest_ns: int = 0
    plan: int = 0
    processor_ns: int = 0
    throttled_ns: int = 0
    memory_permille: int = 0
    link_host: int = 0
    link_ns: int = 0
    data_ns: int = 0
    forward_ns: int = 0
    backward_ns: int = 0
    collect_ns: int = 0
    wait_ns: int = 0
    reduce_ns: int = 0
    wait_reduce_ns: int = 0
    optimizer_ns: int = 0
    evaluate_ns: int = 0
    checkpoint_ns: int = 0

    @property
    def busy_ns(self) -> int:
        """Without waits for other workers."""
        return self.shards_ns + self.rest_ns

    @property
    def total_ns(self) -> int:
        """The sum of all phases: about a step."""
        return sum(self[_FIRST_PHASE:])


_FIRST_PHASE = StepTimes._fields.index("data_ns")

PHASES = tuple(name.removesuffix("_ns") for name in StepTimes._fields[_FIRST_PHASE:])
"""The names of the phases, in the order of the fields."""
