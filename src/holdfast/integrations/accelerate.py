"""Accelerate's loop in a run: the batches that it gets are the shards of this worker.

    from holdfast.integrations.accelerate import Accelerator      # instead of accelerate
    for epoch in range(accelerator.first_epoch, 3):               # instead of range(3)

The loop over batches is over once the last step of the epoch is committed. What the script does
between two epochs, such as evaluation and files, every worker does alike. Outside of a run, the
class does what the library's own does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, Never

import accelerate
import torch
from accelerate import PartialState
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

import holdfast
from holdfast.integrations.width import Width
from holdfast.worker.loop.steps import Steps

STATE: Final = "accelerate"
"""Name of the epoch in `session.state`."""
_REFUSED: Final = ("deepspeed_plugin", "fsdp_plugin", "megatron_lm_plugin", "parallelism_config")


class Accelerator(accelerate.Accelerator):  # type: ignore[misc]  # it has no types here
    """The library's Accelerator, which trains in a run.

    Raises:
        JobError: A method is called that a run cannot do; each says so.
    """

    _live: RunLoop | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if holdfast.is_worker():
            _check(kwargs)
            self._live = RunLoop()
        self._registered: list[Any] = []
        super().__init__(*args, **kwargs)

    @property
    def first_epoch(self) -> int:
        """The epoch in which the loop begins; 0 outside of a run."""
        return 0 if self._live is None else self._live.first_epoch

    def prepare(self, *args: Any, **kwargs: Any) -> Any:
        """Attach what is trained; the first loader is that of the training samples."""
        if self._live is None:
            return super().prepare(*args, **kwargs)
        prepared = self._live.begin(self, args, self._registered)
        return prepared[0] if len(prepared) == 1 else tuple(prepared)

    def register_for_checkpointing(self, *objects: Any) -> None:
        """Make objects part of the run's state; call it before `prepare`."""
        if self._live is None:
            super().register_for_checkpointing(*objects)
        elif self._live.has_begun:
            raise holdfast.JobError("call register_for_checkpointing before prepare")
        else:
            self._registered += objects

    def backward(self, loss: torch.Tensor, **kwargs: Any) -> None:
        """Record the gradient of the batch."""
        if self._live is None:
            super().backward(loss, **kwargs)
        else:
            holdfast.session().backward(loss)

    @contextmanager
    def accumulate(self, *models: Any) -> Iterator[None]:
        """Accumulate gradients; a run does so by itself."""
        if self._live is not None:
            yield
            return
        with super().accumulate(*models):
            yield

    def clip_grad_norm_(self, parameters: Any, max_norm: float, norm_type: float = 2) -> Any:
        """Check that the job clips so: the run clips the gradient of the whole step."""
        if self._live is None:
            return super().clip_grad_norm_(parameters, max_norm, norm_type)
        given = holdfast.session().job.clip_norm
        if given != max_norm or norm_type != 2:
            raise holdfast.JobError(
                f"the script clips at {max_norm} (norm {norm_type}), and the job has "
                f"clip_norm={given}; set clip_norm={max_norm}, of norm 2"
            )
        return None

    def end_training(self) -> None:
        """End the run, and the library's trackers."""
        if self._live is not None:
            self._live.finish()
        super().end_training()


def _not_in_a_run(name: str, instead: str) -> Any:
    """A method that a run refuses always, or in the loop over batches."""

    def method(self: Accelerator, *args: Any, **kwargs: Any) -> Any:
        if self._live is not None and (self._live.is_in_loop or name not in _GATHER):
            raise holdfast.JobError(f"accelerator.{name} was called in a run; {instead}")
        return getattr(super(Accelerator, self), name)(*args, **kwargs)

    return method


_GATHER: Final = ("gather", "gather_for_metrics", "reduce")
for _name in _GATHER:
    setattr(Accelerator, _name, _not_in_a_run(_name, "call it outside of the loop over batches"))
for _name in ("save_state", "load_state", "skip_first_batches"):
    setattr(Accelerator, _name, _not_in_a_run(_name, "the run saves: holdfast train --resume"))
Accelerator.clip_grad_value_ = _not_in_a_run("clip_grad_value_", "clip by norm")


class RunLoop:
    """The training of one Accelerator.

    Attributes:
        is_in_loop: True in the loop over batches.
    """

    def __init__(self) -> None:
        self._steps: Steps | None = None
        self._schedulers: list[LRScheduler] = []
        self._steps_per_epoch = 0
        self._has_entered = False
        self.is_in_loop = False

    @property
    def has_begun(self) -> bool:
        """True once the model is attached."""
        return self._steps is not None

    @property
    def first_epoch(self) -> int:
        """The epoch in which the loop begins."""
        self._active()
        return int(holdfast.session().state.setdefault(STATE, 0))

    def begin(self, library: Any, objects: tuple[Any, ...], registered: list[Any]) -> list[Any]:
        """Attach what is trained, and join; returns what the script uses instead of `objects`."""
        if self.has_begun:
            _refuse("prepare was called twice; give it all in one call")
        session = holdfast.session()
        models = [each for each in objects if isinstance(each, torch.nn.Module)]
        optimizers = [each for each in objects if isinstance(each, torch.optim.Optimizer)]
        loaders = [each for each in objects if isinstance(each, DataLoader)]
        if not (len(models) == len(optimizers) == 1 and loaders):
            _refuse("prepare needs one model, one optimizer, and the loader in one call")
        self._schedulers = [each for each in objects if isinstance(each, LRScheduler)]
        if any(isinstance(each, ReduceLROnPlateau) for each in self._schedulers):
            _refuse("ReduceLROnPlateau is stepped outside of the loop over batches; use another")
        data = _as_read(loaders[0], library.gradient_accumulation_steps)
        model = library.prepare_model(models[0])
        session.attach(lambda: model, lambda _parameters: optimizers[0])
        for number, each in enumerate([*self._schedulers, *registered]):
            session.register(f"{type(each).__name__}-{number}", each)
        self._steps = session.steps(data, epochs=session.job.epochs)
        self._set_main()
        self._steps_per_epoch = len(data)
        batches = Batches(self, len(data))
        stepped = [_Stepped(each, self) for each in (*optimizers, *self._schedulers)]
        instead: dict[int, Any] = {id(each.wrapped): each for each in stepped}
        instead |= {id(models[0]): model, id(loaders[0]): batches}
        others = [each for each in loaders if each is not loaders[0]]
        instead |= {id(each): library.prepare_data_loader(each) for each in others}
        return [instead.get(id(each), each) for each in objects]

    def batches(self) -> Iterator[Any]:
        """The batches of this worker in the steps of an epoch."""
        steps = self._active()
        session = holdfast.session()
        if STATE not in session.state:
            _refuse("the loop is not over range(accelerator.first_epoch, …)")
        if self.is_in_loop:
            _refuse("the loop over batches was left before its end")
        self._end_epoch()
        self.is_in_loop = self._has_entered = True
        end = (session.state[STATE] + 1) * self._steps_per_epoch
        if end > session.job.epochs * self._steps_per_epoch:
            _refuse(f"the loop has more epochs than the job; set epochs={session.state[STATE] + 1}")
        is_over = False
        while not is_over:
            for shard in steps.shards():
                yield shard.batch
            self._set_main()
            for each in self._schedulers:
                each.step()
            is_over = session.step == end
        self.is_in_loop = False

    def _end_epoch(self) -> None:
        """Note that an epoch is over, and what comes after it, if this worker has seen its end."""
        session = holdfast.session()
        epoch = session.state.get(STATE, 0)
        if self._has_entered and session.step == (epoch + 1) * self._steps_per_epoch:
            session.state[STATE] = epoch + 1

    def finish(self) -> None:
        """End the run."""
        self._end_epoch()
        self._active().finish()
        self._set_main()

    def _active(self) -> Steps:
        if self._steps is None:
            _refuse("call prepare before the loop")
        return self._steps

    def _set_main(self) -> None:
        shared = PartialState._shared_state
        number = 0 if self._active().is_main else 1
        shared["process_index"] = shared["local_process_index"] = number


class Batches:
    """The loader of the training samples, as the script iterates over it."""

    def __init__(self, live: RunLoop, num_steps: int) -> None:
        self._live = live
        self._num_steps = num_steps

    def __len__(self) -> int:
        return self._num_steps

    def __iter__(self) -> Iterator[Any]:
        return self._live.batches()


class _Stepped:
    """An optimizer or a scheduler, as the script sees it: a step of the run steps it."""

    def __init__(self, wrapped: Any, live: RunLoop) -> None:
        self.wrapped = wrapped
        self._live = live

    def __getattr__(self, name: str) -> Any:
        return getattr(self.wrapped, name)

    def step(self, *_: Any, **__: Any) -> None:
        """Do nothing in the loop over batches."""
        if not self._live.is_in_loop:
            _refuse(f"{type(self.wrapped).__name__}.step() is outside of the loop over batches")

    def zero_grad(self, *_: Any, **__: Any) -> None:
        """Do nothing."""


def _as_read(library: DataLoader[Any], accumulated: int) -> DataLoader[Any]:
    """The samples of a loader in its order, in batches of a step."""
    session = holdfast.session()
    if isinstance(library.dataset, IterableDataset):
        _refuse("the training samples are an IterableDataset; give one with a length")
    if type(library.batch_sampler) is not BatchSampler or library.batch_size is None:
        _refuse("the loader has a batch_sampler of its own; give it batch_size, and a sampler")
    workers = session.job.shards
    assert isinstance(workers, int), "a job that is not resolved"
    width = Width(micro_batch=library.batch_size, accumulated=accumulated, workers=workers)
    session.adopt(batch=width.batch, shards=width.shards)
    return DataLoader(
        library.dataset,
        batch_size=width.batch,
        sampler=library.sampler,
        drop_last=library.drop_last,
        collate_fn=library.collate_fn,
        num_workers=library.num_workers,
    )


def _check(given: dict[str, Any]) -> None:
    refused = [name for name in _REFUSED if given.get(name) is not None]
    if given.get("mixed_precision") == "fp16":
        refused.append("mixed_precision=fp16; set bf16")
    if refused:
        _refuse(f"it cannot use {', '.join(refused)}")


def _refuse(what: str) -> Never:
    raise holdfast.JobError(f"Accelerate in a run: {what}")
