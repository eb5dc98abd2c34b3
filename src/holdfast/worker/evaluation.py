"""Evaluation: spread over the workers, and the same to the last bit for any number of them.

The data set is cut into as many ranges as a step has shards. Each range is measured in batches of
the job's size, and gives the state of a tally. Every worker combines all states in their order.
"""

from __future__ import annotations

import functools
import json
import operator
import signal
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Final, TypeVar

import torch
from rich.filesize import decimal as in_words
from safetensors.torch import load, save
from torch import nn

from holdfast.arena.memory import MAILBOX_BYTES, Phase
from holdfast.collectives.barrier_tags import WorkerTag
from holdfast.collectives.group import Group
from holdfast.core.step.seeds import seed_for
from holdfast.data.dataset import Batch, generators_kept, seed_everything
from holdfast.data.loading.reader import SAME_DATA
from holdfast.data.loading.source import Source
from holdfast.errors import JobError
from holdfast.linux.lifeline import INTERRUPT
from holdfast.worker.agent_link import StopRequested
from holdfast.worker.context import WorkerContext
from holdfast.worker.devices import to_device
from holdfast.worker.metric_states import Results, State, Tally

Measure = Callable[[nn.Module, Batch], Any]
"""Measures a batch, for a tally."""

MAX_STATE_BYTES: Final = 1 << 30
"""Most bytes of the states of all ranges."""
MAX_RESULTS_BYTES: Final = 1 << 16
"""Most bytes of the results as JSON: they are sent to replacements and kept in checkpoints."""

_STOPPED: Final = (1 << 63) - 1
"""In place of the size of its states: a member has left the evaluation, because the run stops."""


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let the agent's signal end what runs here, which may take long for a single batch.

    Raises:
        StopRequested: The run is to stop.
    """

    def stop(*_: object) -> None:
        raise StopRequested

    signal.signal(INTERRUPT, stop)
    try:
        yield
    finally:
        signal.signal(INTERRUPT, signal.SIG_IGN)


class Evaluator:
    """One worker's part in every evaluation.

    Args:
        context: Context of this worker.
        modules: The model, then further modules that `measure` may use: put into evaluation mode.
        num_shards: Ranges that a data set is cut into.
        batch_size: Samples measured at a time.
        device: Device of the model.
        compares_samples: True if all workers must read the same bits.
    """

    def __init__(
        self,
        context: WorkerContext,
        *,
        modules: Sequence[nn.Module],
        num_shards: int,
        batch_size: int,
        device: torch.device,
        compares_samples: bool,
    ) -> None:
        self._compares_samples = compares_samples
        self._group = context.group
        self._agent = context.agent
        self._parallel = context.job.parallel
        self._status = context.status
        self._modules = modules
        self._num_shards = num_shards
        self._batch_size = batch_size
        self._device = device

    def evaluate(
        self, shards: range, source: Source, measure: Measure, tally: Tally, step: int
    ) -> Results:
        """Results that `tally` makes of what `measure` gives for all batches of `source`.

        Args:
            shards: The ranges that this worker measures.
            source: Data to measure on.
            measure: Called with the model and a batch.
            tally: Tally of no samples yet.
            step: Steps committed so far.

        Raises:
            Aborted: The generation is over.
            StopRequested: The run is to stop; all members leave the evaluation.
            JobError: `measure` gave what the tally does not take, or too much.
        """
        self._status.enter(Phase.EVALUATE)
        modes = [(part, part.training) for module in self._modules for part in module.modules()]
        # Modes are set for the whole evaluation, and restored one by one.
        for module in self._modules:
            module.eval()
        try:
            # A worker may be in the middle of a shard, which must not depend on what it measures.
            with torch.no_grad(), generators_kept():
                compared = self._compares_samples
                digest = source.digest(self._group.check_abort) if compared else 0
                digests = self._group.barrier(WorkerTag.EVALUATION, step, digest)
                if len(set(digests) - {0}) > 1:
                    raise JobError(f"the workers evaluate on different data; {SAME_DATA}")
                try:
                    with _interruptible() if not self._parallel.is_cut else nullcontext():
                        own = _encode(self._measure(shards, source, measure, tally, step))
                except StopRequested:
                    own = None
                # A metric may draw, and all workers compute the results from the same states.
                seed_everything(seed_for("evaluation", "results"))
                return _results(tally, self._exchange(own, step))
        finally:
            for module, was_training in modes:  # each its own: some may be frozen
                module.training = was_training

    def _measure(
        self, shards: range, source: Source, measure: Measure, tally: Tally, step: int
    ) -> dict[int, State]:
        """The state of each range of this worker that has samples."""
        tallies = defaultdict[int, Tally](tally.fresh)
        for (shard, size, batch), counts in self._batches(shards, source, step):
            with self._status.measuring():
                measured = measure(self._modules[0], to_device(batch, self._device))
            if counts:
                tallies[shard].add(measured, size)
        return {shard: each.state() for shard, each in tallies.items()}

    def _batches(
        self, shards: range, source: Source, step: int
    ) -> Iterator[tuple[tuple[int, int, Batch], bool]]:
        """The batches to measure, each with True if it counts on this worker."""

        def batches_of(ranges: range) -> Iterator[tuple[int, int, Batch]]:
            size = self._batch_size
            return source.batches(ranges, self._num_shards, size, self._group.check_abort)

        if not self._parallel.is_cut:
            for each in batches_of(shards):
                if self._agent.stop_requested:
                    raise StopRequested
                yield each, True
            return
        every = range(self._num_shards)
        has_stages = self._parallel.pipeline > 1
        is_last = self._group.rank == self._group.members[-1]
        # Every batch passes through all stages, and the last one has the model's output.
        for each, is_own in in_lockstep(
            self._group,
            step,
            batches_of(every if has_stages else shards),
            lambda: next(batches_of(every)),
            lambda: self._agent.stop_requested,
        ):
            yield each, is_own and (is_last or not has_stages)

    def _exchange(self, payload: bytes | None, step: int) -> list[bytes]:
        """The payloads of all members, piece by piece; None from one that stops.

        Raises:
            StopRequested: Some member stops.
        """
        sent = _STOPPED if payload is None else len(payload)
        sizes = self._group.barrier(WorkerTag.EVALUATION, step, sent)
        if payload is None or _STOPPED in sizes:
            raise StopRequested
        if sum(sizes) > MAX_STATE_BYTES:
            raise JobError(
                f"the metrics of an evaluation keep {in_words(sum(sizes))}; at most "
                f"{in_words(MAX_STATE_BYTES)} fit. Use metrics whose state does not grow with the "
                "samples, such as torchmetrics' with thresholds=100"
            )
        # Payloads may be larger than a mailbox: all members exchange as many pieces as the largest
        # needs.
        rounds = [
            self._group.gather(WorkerTag.EVALUATION, step, payload[start : start + MAILBOX_BYTES])
            for start in range(0, max(sizes), MAILBOX_BYTES)
        ]
        return [b"".join(pieces) for pieces in zip(*rounds, strict=True)]


def _encode(states: dict[int, State]) -> bytes:
    """The states of ranges; names begin with the range."""
    named = {
        f"{shard} {name}": value.detach().cpu().contiguous().clone()  # no two may share memory
        for shard, state in states.items()
        for name, value in state.items()
    }
    return save(named)


def _results(tally: Tally, payloads: Iterable[bytes]) -> Results:
    """Results of the members' states, taken in the order of ranges.

    Raises:
        JobError: There is none, or the results take too much space.
    """
    states = defaultdict[int, State](dict)
    for payload in payloads:
        for name, value in load(payload).items():
            shard, _, key = name.partition(" ")
            states[int(shard)][key] = value
    if not states:
        raise JobError("there are no samples to evaluate on")
    results = tally.results([states[shard] for shard in sorted(states)])
    size = len(json.dumps(results))
    if size > MAX_RESULTS_BYTES:
        largest = max(results, key=lambda name: len(json.dumps(results[name])))
        raise JobError(
            f"the results of an evaluation take {size:,} bytes, most of it {largest}; at most "
            f"{MAX_RESULTS_BYTES:,} are kept; return fewer numbers"
        )
    return results


B = TypeVar("B")

_HAS_BATCH: Final = 1
_STOPS: Final = 2


def in_lockstep(
    group: Group,
    step: int,
    batches: Iterator[B],
    any_batch: Callable[[], B],
    stops: Callable[[], bool],
) -> Iterator[tuple[B, bool]]:
    """Yield batches until no member has one: each with True if it counts.

    Where a model is divided over the workers, a forward pass needs all of them. One that has
    measured its batches repeats its newest one until the others are through, and does not count it.

    Args:
        group: The members.
        step: Steps committed so far.
        batches: Batches of this worker.
        any_batch: Gives some batch of any worker.
        stops: True if the run is to stop.

    Raises:
        Aborted: The generation is over.
        StopRequested: The run is to stop; all members leave at the same batch.
    """
    newest: B | None = None
    while True:
        own = next(batches, None)
        flags = _HAS_BATCH * (own is not None) + _STOPS * stops()
        seen = functools.reduce(operator.or_, group.barrier(WorkerTag.EVALUATION, step, flags))
        if seen & _STOPS:
            raise StopRequested
        if not seen & _HAS_BATCH:
            return
        newest = own or newest or any_batch()
        yield newest, own is not None
