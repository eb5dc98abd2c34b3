"""StreamReader: samples that come one after the other, each used once per epoch.

A step has the next samples of the stream. Every worker reads the whole stream and collates only its
own shards, so workers exchange no samples, and any of them can take over a shard. The position is
part of the user state: it is saved with checkpoints, given to replacements, and compared between
workers with every commit, together with a digest of the samples that come next. So a stream that is
not the same on every worker, or has changed since the run stopped, is found before it is used.

A worker that begins in the middle has the stream load its own state (`state_dict`, as in torchdata)
or, if that does not lead to the right samples, reads the epoch from its start without using it.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from holdfast.core.step.plan import WorkItem
from holdfast.core.step.seeds import seed_for
from holdfast.data.dataset import Collate, generators_kept, name_of, name_of_kind, seed_everything
from holdfast.data.loading.digest import digest_of
from holdfast.data.loading.loaded import Loaded, collated
from holdfast.data.loading.loader import sample_key
from holdfast.data.loading.order import shard_bounds
from holdfast.errors import JobError


class StreamReader:
    """Reads a stream; see `data.loading.reader.Reader`.

    Args:
        stream: Gives samples when it is iterated over, the same ones each time.
        collate: Makes a batch of a list of samples.
        batch_size: Samples of a full step, over all workers.
        drops_last: True if a short last batch is left out.
        num_shards: Shards per step.
        epochs: Passes through the stream; 0 if only `steps` ends the run.
        steps: Steps of the run; 0 if only `epochs` ends it.
        seed: The job's seed.
        check_abort: Raises if waiting must end.
    """

    def __init__(
        self,
        stream: Any,
        collate: Collate,
        *,
        batch_size: int,
        drops_last: bool,
        num_shards: int,
        epochs: int,
        steps: int,
        seed: int,
        check_abort: Callable[[], None],
    ) -> None:
        self._stream = stream
        self._collate = collate
        self._check_abort = check_abort
        self._batch_size = batch_size
        self._least = batch_size if drops_last else 1
        self._num_shards = num_shards
        self._seed = seed
        self.epochs = epochs
        self.total_steps = steps
        kind = type(stream)
        self.facts = {
            "stream": name_of_kind(kind),
            "batch_size": batch_size,
            "drops_last": drops_last,
            "num_shards": num_shards,
            "epochs": epochs,
            "steps": steps,
            "seed": seed,
        }
        self._position: dict[str, Any] = {
            "step": 0,
            "epoch": 0,
            "first_step": 0,
            "ended": False,
            "state": None,
        }
        self._next: str | None = None  # what the samples must be like; None: anything
        self._pass: _Pass | None = None
        self._samples: list[Any] = []

    def state_dict(self) -> dict[str, Any]:
        """The position, with a digest of the samples that come next."""
        self._open()
        return {**self._position, "next": self._next}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a position."""
        if self._pass is not None and state == self.state_dict():
            return
        self._position = {key: value for key, value in state.items() if key != "next"}
        self._next = state["next"]
        self._pass = None

    def is_over(self, step: int) -> bool:
        """Implements `Reader`."""
        finished = self.epochs > 0 and self._position["epoch"] == self.epochs
        return finished or 0 < self.total_steps <= step

    def epoch_of(self, step: int) -> int:
        """Implements `Reader`."""
        is_before = step < self._position["step"] and self._position["ended"]
        return int(self._position["epoch"]) - int(is_before)

    def ends_epoch(self, step: int) -> bool:
        """Implements `Reader`."""
        return bool(self._position["ended"]) or step + 1 == self.total_steps

    def batch_size_of(self, step: int) -> int:
        """Implements `Reader`."""
        self._open_at(step)
        return len(self._samples)

    def take(self, step: int, item: WorkItem, items: Sequence[WorkItem]) -> Loaded | None:
        """Implements `Reader`."""
        assert item in items, "an item of another worker"
        return self.read_now(step, item)

    def upcoming(self) -> Loaded | None:
        """Implements `Reader`. Nothing is read ahead."""
        return None

    def read_now(self, step: int, item: WorkItem) -> Loaded | None:
        """Implements `Reader`."""
        self._open_at(step)
        bounds = shard_bounds(len(self._samples), self._batch_size, self._num_shards)
        samples = self._samples[bounds[item.shards.start] : bounds[item.shards.stop]]
        if not samples:
            return None
        seed_everything(seed_for(*sample_key(self._seed, step, item)))
        return collated(samples, self._collate)

    def borrow(self, step: int) -> Loaded:
        """Implements `Reader`."""
        self._open_at(step)
        return Loaded(self._collate(self._samples[:2]), 0)

    def advance(self) -> None:
        """Implements `Reader`."""
        self._open()
        assert self._pass is not None, "a step was committed after the last one"
        position = self._position
        step = self._position["step"] + 1
        state = self._pass.state()
        is_full = len(self._samples) == self._batch_size
        following = self._pull(self._pass, step) if is_full else []
        if following:
            self._position = {**position, "step": step, "ended": False, "state": state}
            self._samples = following
            self._next = digest_of(following)
        else:
            self._position = {
                "step": step,
                "epoch": position["epoch"] + 1,
                "first_step": step,
                "ended": True,
                "state": None,
            }
            self._samples = []
            self._next = None
            self._pass = None

    def check(self, step: int, known: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        """Implements `Reader`. The next samples are compared wherever a stream is opened."""
        return {}

    def close(self) -> None:
        """Implements `Reader`."""
        self._pass = None

    def batches(self) -> Iterator[list[Any]]:
        """The samples of one epoch, step by step."""
        opened = self._begin(0, None)
        for step in itertools.count():
            self._check_abort()
            if not (samples := self._pull(opened, step)):
                return
            yield samples

    def _open_at(self, step: int) -> None:
        assert step == self._position["step"], "a stream is read in its current step only"
        self._open()

    def _open(self) -> None:
        """Have the samples of the current step, unless the run is over.

        Raises:
            Aborted: The generation is over.
            JobError: There are none, or not those that the run stopped before.
        """
        step = self._position["step"]
        if self._pass is not None or self.is_over(step):
            return
        for begin in (self._from_state, self._from_start):
            opened = begin(step)
            self._samples = [] if opened is None else self._pull(opened, step)
            found = digest_of(self._samples)
            if opened is not None and self._next in (None, found):
                self._pass = opened
                self._next = found
                break
        else:
            raise JobError(
                f"{name_of(self._stream)} gives other samples in step {step + 1} than when the run "
                "stopped there; resume with the same data, or start a new run"
            )
        if not self._samples:
            raise JobError(
                f"{name_of(self._stream)} gave no samples in epoch {self.epoch_of(step)}"
            )

    def _from_state(self, _step: int) -> _Pass | None:
        """The stream where its own state leads; None if it has none."""
        state = self._position["state"]
        return None if state is None else self._begin(self._position["first_step"], state)

    def _from_start(self, step: int) -> _Pass:
        """The stream after reading the epoch up to `step`."""
        first = self._position["first_step"]
        opened = self._begin(first, None)
        for before in range(first, step):
            self._check_abort()
            self._pull(opened, before)
        return opened

    def _begin(self, first_step: int, state: Any) -> _Pass:
        with generators_kept():
            seed_everything(seed_for("stream", self._seed, first_step))
            return _Pass(self._stream, self._position["epoch"], state)

    def _pull(self, opened: _Pass, step: int) -> list[Any]:
        """The samples of `step`, which come next; none at the end. Random numbers that the stream
        draws depend on the step, and do not shift those of the model.
        """
        with generators_kept():
            seed_everything(seed_for("stream", self._seed, "step", step))
            samples = list(itertools.islice(opened.samples, self._batch_size))
        return samples if len(samples) >= self._least else []


class _Pass:
    """One pass through a stream, by a copy of it: another pass begins from the original.

    Args:
        stream: The stream.
        epoch: The number of the pass.
        state: Value that `state` gave; None to begin at the start.
    """

    def __init__(self, stream: Any, epoch: int, state: Any) -> None:
        # Those of Hugging Face keep their position in nested objects; their tables stay shared.
        is_nested = type(stream).__module__.partition(".")[0] == "datasets"
        self._stream = copy.deepcopy(stream) if is_nested else copy.copy(stream)
        if hasattr(self._stream, "set_epoch"):
            self._stream.set_epoch(epoch)
        if state is not None:
            self._stream.load_state_dict(copy.deepcopy(state))
        self.samples: Iterator[Any] = iter(self._stream)

    def state(self) -> Any:
        """Position of the stream, if it can tell; else None."""
        stateful = hasattr(self._stream, "state_dict") and hasattr(self._stream, "load_state_dict")
        return copy.deepcopy(self._stream.state_dict()) if stateful else None
