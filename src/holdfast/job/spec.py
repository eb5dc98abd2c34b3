"""The job: everything that a run is asked to do, checked.

Every key has its meaning and range here and in the parts beside, and nowhere else. What a key may
hold is written so that the message of a refused value says what would have been right.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from holdfast.core.plan import Plan
from holdfast.core.verification import LEAST_SHARE
from holdfast.errors import JobError
from holdfast.job.data import Data
from holdfast.job.models import Model
from holdfast.job.optimizers import AdamW, Constant, Optimizer, Schedule
from holdfast.job.part import Count, Spec
from holdfast.job.portable import PINNED
from holdfast.job.script import Script

NonFinite = Literal["stop", "skip", "recompute"]


class CheckpointSettings(Spec):
    """When checkpoints are written; one is written at the end and on a request to stop anyway."""

    every_steps: Annotated[int, Field(ge=0)] = 100
    """Steps from one checkpoint to the next; 0 counts none."""
    every_s: Annotated[float, Field(ge=0)] = 0.0
    """Seconds after a checkpoint, whatever it was written for, until the next; 0 counts none."""
    keep: Count = 2
    """How many of the newest to keep."""


class Evaluation(Spec):
    """When the task's test data is measured, and what follows from it."""

    every_epochs: Count = 1
    """Epochs from one evaluation to the next; the last epoch is evaluated anyway."""
    best: str | None = None
    """The metric whose best checkpoint is kept, such as `accuracy`."""
    goal: Literal["max", "min"] = "max"
    """Whether more of it is better, or less."""
    patience: Count | None = None
    """Evaluations without a better value after which the run ends early."""

    @model_validator(mode="after")
    def _patience_is_for_a_metric(self) -> Self:
        if self.patience is not None and self.best is None:
            raise ValueError("patience needs a metric to watch; set evaluation.best too")
        return self


class LoaderSettings(Spec):
    """How samples are read; nothing of it shows in what is read."""

    prefetch: Annotated[int, Field(ge=0, le=64)] = 2
    """Shards that a worker reads ahead; at least as many as it has loader processes."""
    workers: Annotated[int, Field(ge=0, le=64)] = 0
    """Loader processes of each worker; with 0 it reads in a thread of its own, or, where a data set
    may draw from the global generators, between shards."""
    pin_memory: bool = False
    """Put samples into page-locked memory, from which a GPU copies faster; nothing without CUDA."""


class Verify(Spec):
    """What is checked while the run goes on, beyond what always is."""

    recompute: Annotated[float, Field(ge=0, le=1)] = 0.0
    """The share of shards that another worker computes too, and compares, before a step commits;
    one in N, where N is the largest prime that is not above 1 / recompute. 0, or at least 0.000001.
    A lone worker checks nothing."""

    @field_validator("recompute")
    @classmethod
    def _is_within_reach(cls, share: float) -> float:
        if 0 < share < LEAST_SHARE:
            raise ValueError(f"must be 0, or at least {LEAST_SHARE:f}")
        return share


class Restarts(Spec):
    """How much is forgiven before the run ends."""

    limit: Annotated[int, Field(ge=0)] = 10
    """Failures of workers or hosts within the window."""
    window_s: Annotated[float, Field(gt=0)] = 600.0
    """Its length, seconds."""


def _are_variables(names: object) -> object:
    """Refuse what is no list of names, without a word of what it is: it may be an address."""
    if isinstance(names, list | tuple) and all(
        isinstance(name, str) and name.isidentifier() for name in names
    ):
        return names
    raise PydanticCustomError(
        "withheld",
        "input should be a list of names of environment variables that hold the addresses, such "
        "as [MY_WEBHOOK], and not the addresses themselves",
    )


class Job(Spec):
    """A training job.

    The keys in `FREE_ON_RESUME`, and a model's `gradient_checkpointing`, may differ when a run is
    resumed: none of them shows in the weights on one kind of hardware, but for `non_finite`, which
    says how a run goes on that could not.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")] = "job"
    """Names the run's directory."""
    task: str = "classification"
    """`classification`, `language`, `masked-language`, or your own: `package.module:name` or
    `path/to/file.py:name`, where name is a task class or a function that takes the session."""
    params: dict[str, Any] = Field(default_factory=dict)
    """Anything that your own task wants to know."""
    script: Script | None = None
    """In place of a task, what `holdfast run` runs, which alone sets this: a script with a training
    loop and checkpoints of its own."""

    data: Data | None = None
    model: Model | None = None
    optimizer: Optimizer = AdamW(name="adamw")
    schedule: Schedule = Constant()

    batch: Count = 64
    """Samples of a step, over all workers."""
    epochs: Annotated[Count, Field(le=10**9)] = 1
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    clip_norm: Annotated[float, Field(gt=0)] | None = None
    """Scale the gradient down to this 2-norm where it is longer."""

    workers: Annotated[int, Field(ge=1, le=256)] = 1
    shards: Annotated[int, Field(ge=1, le=4096)] = 8
    """Shards that a step is cut into: a constant of the job, never read off the machine."""
    shards_per_worker: tuple[int, ...] | None = None
    """Shards of each worker, where they are to be uneven."""
    numerics: Literal["exact", "portable", "fast"] = "exact"
    """`exact`: the same bits whatever the workers. `portable`: on x86-64 processors of different
    makers, too; slower. `fast`: a worker's shards are one batch."""
    sync: Literal["tree", "ddp"] = "tree"
    """How gradients are summed. `tree`: along a tree over shards, through shared memory. `ddp`:
    PyTorch's DistributedDataParallel (gloo, or NCCL on GPUs), a worker's shards being one batch."""
    port: Annotated[int, Field(ge=0, le=65535)] = 0
    """Where the workers of `sync: ddp` meet, on this host alone; 0 takes a free port."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto`: GPUs where there are any."""
    on_numerics_change: Literal["record", "fail"] = "record"
    """What happens when a run is resumed on hardware or software unlike that of its checkpoint.
    `stamp`: it continues, and its result names the difference. `refuse`: it does not start."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """`bf16`: forward passes under PyTorch's autocast; weights and gradients stay in fp32."""
    compile: bool = False
    """Compile the model with torch.compile, once for every shape of a batch."""
    threads_per_worker: Annotated[Count, Field(le=1024)] = 1
    """Threads of a worker's kernels; part of what makes the bits."""
    timeout_s: Annotated[float, Field(gt=0)] = 1800.0
    """How long workers wait for each other before they give up, seconds."""

    hang_timeout_s: Annotated[float, Field(gt=0)] = 60.0
    """How long your code may do nothing in a shard, seconds, before its worker is held to hang and
    replaced; three times as long as its slowest recent one in any case. Nothing is less than a
    hundredth of a processor, by the worker or by processes that it has started."""
    on_failure: Literal["replace", "shrink", "restart", "stop"] = "replace"
    """What happens when a worker is lost. `replace`: another takes its place, and the run goes on.
    `shrink`: the others go on with its shards at once, and another joins them later. `restart`: all
    workers begin anew from the newest checkpoint; with `sync: ddp` this takes the place of the two
    before. `stop`: the run ends."""
    non_finite: NonFinite = "stop"
    """What happens when a step's gradient is NaN or infinite. `stop`: the run ends. `skip`: the
    step changes nothing. `recompute`: other workers compute it again; the run ends if it comes out
    the same, and else whoever was wrong is replaced."""
    verify: Verify = Verify()
    restarts: Restarts = Restarts()

    evaluation: Evaluation = Evaluation()
    loader: LoaderSettings = LoaderSettings()
    checkpoint: CheckpointSettings = CheckpointSettings()

    notify: Annotated[tuple[str, ...], BeforeValidator(_are_variables)] = ()
    """Names of environment variables, each of which holds an address of the library Apprise to
    which word of the end of the run, and of recoveries, is sent."""

    FREE_ON_RESUME: ClassVar[frozenset[str]] = frozenset(
        {
            "workers",
            "shards_per_worker",
            "timeout_s",
            "port",
            "device",
            "on_numerics_change",
            "loader",
            "checkpoint",
            "hang_timeout_s",
            "on_failure",
            "non_finite",
            "verify",
            "restarts",
            "notify",
        }
    )

    @field_validator("params")
    @classmethod
    def _params_are_plain(cls, params: dict[str, Any]) -> dict[str, Any]:
        try:
            text = json.dumps(params, allow_nan=False, ensure_ascii=False).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(
                f"{error}; params may hold finite numbers, strings, lists and mappings"
            ) from None
        plain: dict[str, Any] = json.loads(text)
        return plain

    @field_validator("sync")
    @classmethod
    def _portable_bits_are_of_the_tree(cls, chosen: str, keys: ValidationInfo) -> str:
        if chosen == "ddp" and keys.data.get("numerics") == "portable":
            raise ValueError("ddp does not give portable numerics; set sync=tree")
        return chosen

    @field_validator("non_finite")
    @classmethod
    def _bits_are_compared_by_shard(cls, chosen: NonFinite, keys: ValidationInfo) -> NonFinite:
        merges = keys.data.get("sync") == "ddp" or keys.data.get("numerics") == "fast"
        if chosen == "recompute" and merges:
            raise ValueError(
                "recompute compares the bits of shards, which needs sync=tree and numerics=exact; "
                "set those, or stop or skip here"
            )
        return chosen

    @field_validator("verify")
    @classmethod
    def _shards_are_verified_alone(cls, chosen: Verify, keys: ValidationInfo) -> Verify:
        merges = keys.data.get("sync") == "ddp" or keys.data.get("numerics") == "fast"
        if chosen.recompute and merges:
            raise ValueError(
                "recompute compares the bits of shards, which needs sync=tree and numerics=exact; "
                "set those, or recompute=0"
            )
        return chosen

    def plan(self, members: int | None = None) -> Plan:
        """Which worker computes which shards; evenly where there are fewer `members` than workers.

        Raises:
            JobError: The workers cannot share the shards.
        """
        if self.shards_per_worker is None and self.workers > self.shards:
            raise JobError(
                f"workers={self.workers} is more than shards={self.shards}, so some could never "
                f"work: start at most {self.shards} workers, or set shards={self.workers} or more"
            )
        if self.shards_per_worker is None or members not in (None, self.workers):
            return Plan.even(self.shards, members or self.workers)
        return Plan.of_counts(self.shards_per_worker, self.shards, self.workers)

    @property
    def restarts_all(self) -> bool:
        """Whether the loss of a worker is that of all, who begin anew from a checkpoint.

        A collective of gloo or NCCL cannot be taken up by others, nor a script of its own.
        """
        return self.on_failure == "restart" or self.sync == "ddp" or self.script is not None

    @property
    def library_variables(self) -> dict[str, str]:
        """Environment variables that the libraries of workers must have been loaded with."""
        return dict(PINNED) if self.numerics == "portable" else {}

    @property
    def merges_shards(self) -> bool:
        """Whether a worker's shards are computed as one batch, so that the workers show."""
        return self.numerics == "fast" or self.sync == "ddp"

    def weights_config(self) -> dict[str, Any]:
        """The keys that decide the weights, as plain data."""
        shown_nowhere = {
            "model": {"gradient_checkpointing"},
            "data": {"cache"},
            "script": {"arguments"},
        }
        whole = self.model_dump(mode="json", exclude=shown_nowhere)
        keys = {key: value for key, value in whole.items() if key not in self.FREE_ON_RESUME}
        if self.merges_shards:  # last, because these follow from other keys
            keys |= {key: whole[key] for key in ("workers", "shards_per_worker")}
        return keys
