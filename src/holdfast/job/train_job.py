"""A job that trains a model: its keys, their meaning and range.

What a key may hold is written so that the message of a refused value says what is allowed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import Field, ValidationInfo, field_validator

from holdfast.core.step import tree
from holdfast.core.step.plan import Plan, WorkItem, plan_step
from holdfast.errors import JobError
from holdfast.job.data import Data, TextData
from holdfast.job.models import Model
from holdfast.job.part import (
    AUTO,
    MAX_SHARDS,
    AutoShards,
    AutoThreads,
    Count,
    Port,
    Shards,
    Threads,
    Workers,
)
from holdfast.job.run_keys import RunKeys, changed_key
from holdfast.job.settings import (
    PINNED,
    AdamW,
    BackupSettings,
    CheckpointSettings,
    Constant,
    DdpSettings,
    Evaluation,
    InitFrom,
    LoaderSettings,
    Optimizer,
    Program,
    Schedule,
    Verify,
)

BALANCES: Final = ("even", "proportional", "dynamic", "hybrid")
"""Values of `balance` that name no function."""
SCORED: Final = ("proportional", "hybrid")
"""Those that need a profile of each host."""
MEASURED: Final = ("dynamic", "hybrid")
"""Those that follow measured times."""
FINE: Final = 8
"""Shards per worker that a balance other than even divides well, where none are measured."""

NonFinite = Literal["stop", "skip", "recompute"]
Exchange = Literal["alone", "mapped", "staged", "arena"]
"""Where the workers of one host sum gradients."""


class TrainRequest(RunKeys):
    """Request to `holdfast train`: a model, its data and how it is trained.

    Some numbers may be `auto`, until `resolved` decides them for a run.
    """

    # The task: model, data and loss.
    task: str = "classification"
    """`classification`, `language`, `masked-language`, `qlora`, or your own: `package.module:name`
    or `path/to/file.py:name`, where name is a task class or a function that takes the session."""
    params: dict[str, Any] = Field(default_factory=dict)
    """Parameters of your own task: any plain values."""
    data: Data | None = None
    """Data set of a built-in task."""
    model: Model | None = None
    """Model of a built-in task."""
    init_from: InitFrom | None = None
    """Where the model's first weights come from; by default its factory draws them."""

    # Optimization.
    optimizer: Optimizer = AdamW(name="adamw")
    """Optimizer of a built-in task."""
    schedule: Schedule = Constant()
    """Learning rate of a built-in task, by step."""
    batch: Count = 64
    """Global batch size: samples per step over all workers."""
    epochs: Annotated[Count, Field(le=10**9)] = 1
    """Number of times that each training sample is used."""
    extend: bool = False
    """Resume a run, with more epochs or steps than it began with. Schedules span the new
    length."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Seed of the initial weights, the sample order and all random numbers."""
    clip_norm: Annotated[float, Field(gt=0)] | None = None
    """Maximum gradient norm (L2)."""

    # How a step is computed.
    shards: AutoShards = AUTO
    """Shards per step, the same for the whole run. `auto`: `max_workers`, or as many as workers at
    the first start. With a `balance` other than `even`, a short measurement before the first step
    weighs what more of them cost against the finer split; on several hosts, and where a worker's
    shards form one batch, it is 8 per worker."""
    max_workers: Workers | None = None
    """Largest number of workers that the run may be resumed with, for `shards: auto`."""
    shards_per_worker: tuple[int, ...] | None = None
    """Number of shards of each worker; even by default."""
    balance: str = "even"
    """How many shards each worker computes: `even`, as many as `shards_per_worker` says;
    `proportional`, by the profile of its host; `dynamic`, as many as end a step soonest, from
    measured times; `hybrid`, by the profile until times are measured; or your own function, as
    `package.module:name` or `path/to/file.py:name`. The weights are the same, but with `sync: ddp`
    and `numerics: fast`, where they depend on the plan."""
    numerics: Literal["exact", "portable", "mixed", "fast"] = "exact"
    """`exact`: the same bits for every number of workers. `portable`: also on x86-64 processors of
    different makers; slower. `mixed`: hosts may have unlike processors or GPUs; replicas stay
    equal, but the bits depend on which host computes which shard. `fast`: a worker's shards form
    one batch."""
    sync: Literal["tree", "ddp"] = "tree"
    """How gradients are summed. `tree`: along a tree over shards, through shared memory. `ddp`:
    PyTorch's DistributedDataParallel (gloo, or NCCL on GPUs); a worker's shards form one batch."""
    exchange: Literal["auto", "nccl", Exchange] = "auto"
    """Where gradients are summed with `sync: tree`; the weights are the same. `arena`: by the CPU,
    in memory that the workers of a host share. `mapped`: on the device of each worker, which reads
    the memory of the others. `staged`: the same, copied through the host's memory. `nccl`: as
    `mapped`, and devices of different hosts send each other sums through NCCL, or gloo on CPUs;
    needs `network: trusted`. `alone`: on the device of the only worker. `auto` chooses one that
    suits the devices."""
    port: Port = 0
    """Port of the rendezvous of `sync: ddp`, on the host of rank 0; 0 chooses a free port."""
    ddp: DdpSettings = DdpSettings()
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto`: GPUs if there are any."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """`bf16`, `fp16`: forward passes under PyTorch's autocast; weights and gradients stay in fp32.
    With `fp16`, losses are scaled; a step that overflows is skipped and halves the scale."""
    compile: bool = False
    """Compile the model with torch.compile, once for every shape of a batch."""
    threads_per_worker: AutoThreads = AUTO
    """Threads of a worker's kernels; they affect the bits. `auto`: 1, or what `workers: auto` has
    found to be fastest."""

    # Failures.
    on_failure: Literal["replace", "shrink", "restart", "stop"] = "replace"
    """What happens when a worker fails. `replace`: a replacement takes its rank and the run
    continues. `shrink`: the other workers continue with its shards at once; a replacement joins
    later. `restart`: all workers restart from the newest checkpoint; `sync: ddp` does this instead
    of the two before. `stop`: the run ends."""
    on_numerics_change: Literal["record", "fail"] = "record"
    """What happens when a run is resumed on hardware or software unlike that of its checkpoint.
    `record`: it continues, and its result names the difference. `fail`: it does not start."""
    non_finite: NonFinite = "stop"
    """What happens when a step's gradient is NaN or infinite. `stop`: the run ends. `skip`: the
    step changes nothing. `recompute`: other workers compute it again. If the result is the same,
    the run ends; if not, the worker that was wrong is replaced."""
    verify: Verify = Verify()

    # Reading, measuring, saving.
    evaluation: Evaluation = Evaluation()
    loader: LoaderSettings = LoaderSettings()
    checkpoint: CheckpointSettings = CheckpointSettings()
    backup: BackupSettings | None = None
    """Where copies of the run go while it trains; by default nowhere."""
    program: Program | None = None
    """The program that asked for the run; None for a command."""

    @field_validator("params")
    @classmethod
    def _params_are_plain(cls, params: dict[str, Any]) -> dict[str, Any]:
        try:
            text = json.dumps(params, allow_nan=False, ensure_ascii=False).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(
                f"{error}; params may contain finite numbers, strings, lists and mappings"
            ) from None
        plain: dict[str, Any] = json.loads(text)
        return plain

    @field_validator("numerics")
    @classmethod
    def _portable_pins_variables(cls, chosen: str, keys: ValidationInfo) -> str:
        pinned = sorted(PINNED.keys() & keys.data.get("env", {}))
        if chosen == "portable" and pinned:
            raise ValueError(f"portable sets {' and '.join(pinned)} itself; remove it from env")
        return chosen

    @field_validator("sync")
    @classmethod
    def _portable_needs_the_tree(cls, chosen: str, keys: ValidationInfo) -> str:
        if chosen == "ddp" and keys.data.get("numerics") == "portable":
            raise ValueError("ddp does not support numerics=portable; set sync=tree")
        return chosen

    @field_validator("ddp")
    @classmethod
    def _ddp_keys_need_ddp(cls, chosen: DdpSettings, keys: ValidationInfo) -> DdpSettings:
        if chosen != DdpSettings() and keys.data.get("sync") == "tree":
            raise ValueError(
                "these keys are DistributedDataParallel's; set sync=ddp, or remove them"
            )
        return chosen

    @field_validator("balance")
    @classmethod
    def _balance_is_known(cls, chosen: str) -> str:
        if chosen not in BALANCES and ":" not in chosen:
            raise ValueError(
                f"should be {', '.join(BALANCES)}, or a function as package.module:name or "
                "path/to/file.py:name"
            )
        return chosen

    @field_validator("non_finite")
    @classmethod
    def _recompute_needs_separate_shards(cls, chosen: NonFinite, keys: ValidationInfo) -> NonFinite:
        if chosen == "recompute":
            _check_separate_shards(keys, "use stop or skip")
        return chosen

    @field_validator("verify")
    @classmethod
    def _verification_needs_separate_shards(cls, chosen: Verify, keys: ValidationInfo) -> Verify:
        if chosen.recompute:
            _check_separate_shards(keys, "recompute=0")
        return chosen

    def check(self) -> None:
        """Raises: JobError: A key does not support the value of another."""
        balance = f"balance={self.balance}"
        exchange = f"exchange={self.exchange}"
        hosts = f"hosts={self.hosts}"
        is_uneven = self.balance != "even"
        is_alone = self.exchange == "alone"
        is_nccl = self.exchange == "nccl"
        is_on_device = is_alone or is_nccl or self.exchange in ("mapped", "staged")
        is_several = self.hosts > 1
        is_ddp = self.sync == "ddp"
        is_mixed = self.numerics == "mixed"
        recompute = ("non_finite=recompute", "non_finite=stop or skip")
        verify = ("verify.recompute", "verify.recompute=0")
        refused = (
            (is_mixed and self.non_finite == "recompute", "numerics=mixed", *recompute),
            (is_mixed and self.verify.recompute, "numerics=mixed", *verify),
            (is_uneven and self.shards_per_worker, balance, "shards_per_worker", "one of them"),
            (self.exchange != "auto" and is_ddp, exchange, "sync=ddp", "sync=tree"),
            (is_on_device and self.non_finite == "recompute", exchange, *recompute),
            (is_on_device and not is_alone and self.verify.recompute, exchange, *verify),
            (is_alone and self.workers != 1, exchange, f"workers={self.workers}", "exchange=auto"),
            (is_nccl and not is_several, exchange, hosts, "exchange=auto"),
            (is_nccl and self.network == "tls", exchange, "network=tls", "network=trusted"),
            (is_several and self.non_finite == "recompute", hosts, *recompute),
            (is_several and self.verify.recompute, hosts, *verify),
            (is_several and self.workers == AUTO, hosts, "workers=auto", "a number of workers"),
        )
        for is_given, key, other, instead in refused:
            if is_given:
                raise JobError(f"{key} does not support {other}; set {instead}")
        if (gpus := self.resources.gpus) > 1:
            workers = "" if self.workers == AUTO else f", workers={gpus * self.workers}"
            raise JobError(
                f"resources.gpus={gpus} keeps GPUs from others that nothing uses: a worker "
                f"computes on one; set resources.gpus=1{workers}"
            )
        if self.workers != AUTO and self.workers < self.hosts:
            raise JobError(
                f"workers={self.workers} leaves some of hosts={self.hosts} without a worker; set "
                f"workers={self.hosts} or more"
            )

    def exchange_on(self, *, gpu: bool) -> Exchange:
        """The value of `exchange` for workers of a host on GPUs or CPUs. On GPUs that cannot be
        mapped, `mapped` becomes `staged`.
        """
        if self.exchange == "nccl":
            return "mapped"
        # A lone worker copies nothing to others, and its state outlives it.
        if self.exchange == "staged" and self.workers == 1:
            return "alone"
        if self.exchange != "auto":
            return self.exchange
        # These compare partial sums of all workers.
        if self.sync == "ddp" or self.non_finite == "recompute":
            return "arena"
        if self.workers == 1:
            return "alone"
        return "mapped" if gpu and not self.verify.recompute else "arena"

    @property
    def merges_shards(self) -> bool:
        """True if a worker's shards form one batch, so that the plan shows in the weights."""
        return self.numerics == "fast" or self.sync == "ddp"

    @property
    def weighs_shards(self) -> bool:
        """True if the number of shards is to be measured: they can be divided unevenly, and each
        costs time.
        """
        return self.shards == AUTO and self.balance != "even" and not self.merges_shards

    def _unmeasured_shards(self, workers: int) -> int:
        least = self.max_workers or sum(self.shards_per_worker or ()) or workers
        if self.balance == "even" or least == 1:
            return least
        return max(least, min(FINE * least, self.batch, MAX_SHARDS))

    def resolved(self, begun: TrainJob | None = None) -> TrainJob:
        """The job with numbers for all that is `auto`.

        Args:
            begun: The job of the run that is resumed, whose numbers are kept; None at a first
                start, where `workers` must be a number.

        Raises:
            JobError: There are more workers than `max_workers`, or than shards.
        """
        self.check()
        workers = self.workers
        threads = self.threads_per_worker
        shards = self.shards
        if workers == AUTO:
            if begun is None:
                raise JobError("only a training run measures workers=auto; give a number")
            workers = begun.workers
        if threads == AUTO:
            threads = begun.threads_per_worker if begun else 1
        if shards == AUTO and begun:
            shards = begun.shards
            if workers > shards and self.shards_per_worker is None:
                raise JobError(
                    f"workers={workers} is more than shards={shards}, which the run keeps from its "
                    f"first start: resume it with at most {shards} workers, or start a new run "
                    f"with max_workers={workers}"
                )
        elif shards == AUTO:
            shards = self._unmeasured_shards(workers)
        if self.max_workers is not None and not workers <= self.max_workers <= shards:
            raise JobError(
                f"max_workers={self.max_workers} must be at least workers={workers} and at most "
                f"shards={shards}; change one of them"
            )
        numbers = {"workers": workers, "threads_per_worker": threads, "shards": shards}
        job = TrainJob.model_validate(self.model_dump() | numbers)
        job.plan()  # refuses a worker without shards
        return job


def _check_separate_shards(keys: ValidationInfo, instead: str) -> None:
    """Raises: ValueError: A worker's shards form one batch, so their bits cannot be compared."""
    if keys.data.get("sync") == "ddp" or keys.data.get("numerics") == "fast":
        raise ValueError(
            "recompute compares the bits of shards, which needs sync=tree and numerics=exact; "
            f"set those, or {instead}"
        )


class TrainJob(TrainRequest):
    """Job that a run executes: a `TrainRequest` with numbers.

    The keys in `FREE_ON_RESUME`, and a model's `gradient_checkpointing`, may differ when a run is
    resumed. None of them changes the weights on one kind of hardware, except `non_finite`, which
    lets a failed run continue.
    """

    workers: Workers
    shards: Shards
    threads_per_worker: Threads

    records_progress: ClassVar[bool] = True
    """True if steps, metrics and checkpoints of the workers are known to holdfast."""
    FREE_ON_RESUME: ClassVar[frozenset[str]] = frozenset(
        {
            "workers",
            "hosts",
            "network",
            "heartbeat",
            "max_workers",
            "extend",
            "shards_per_worker",
            "balance",
            "timeout_s",
            "exchange",
            "port",
            "device",
            "on_numerics_change",
            "loader",
            "checkpoint",
            "backup",
            "hang_timeout_s",
            "on_failure",
            "non_finite",
            "verify",
            "restarts",
            "notify",
            "trackers",
            "env",
            "resources",
            "program",
        }
    )

    @property
    def has_process_groups(self) -> bool:
        """True if workers communicate through gloo or NCCL, where the failure of one shows in all
        the others.
        """
        return self.sync == "ddp"

    @property
    def restarts_all(self) -> bool:
        """True if the failure of one worker restarts all of them from a checkpoint.

        A collective of gloo or NCCL cannot continue with a replacement.
        """
        return self.on_failure == "restart" or self.sync == "ddp"

    @property
    def allows_unlike_hosts(self) -> bool:
        """True if hosts may have unlike processors or GPUs, so that they compute other bits."""
        return self.numerics == "mixed" or self.merges_shards

    @property
    def tokens_per_sample(self) -> int | None:
        """Tokens of a sample, or bytes without a tokenizer; None if the data are no text."""
        return self.data.length if isinstance(self.data, TextData) else None

    @property
    def movable_shards(self) -> int:
        """Shards of a step that any worker can compute in place of another one; 0 if none are."""
        return 0 if self.merges_shards or self.restarts_all else self.shards

    @property
    def num_leaves(self) -> int:
        """Leaves of the reduction tree: a shard each, or a worker each where shards are merged."""
        return self.workers if self.merges_shards else self.shards

    @property
    def num_partials(self) -> int:
        """Most partial sums that all workers of an even step hold together."""
        plan = self.plan()
        items = [self.work_items(plan, place) for place in range(self.workers)]
        return sum(
            tree.partials_needed([item.leaf for item in each], self.num_leaves) for each in items
        )

    @property
    def num_published(self) -> int:
        """Most partial sums that a worker of an even step passes on."""
        plan = self.plan()
        return max(
            tree.partials_left([item.leaf for item in self.work_items(plan, at)], self.num_leaves)
            for at in range(self.workers)
        )

    def plan(self, num_members: int | None = None) -> Plan:
        """Assignment of a step's shards to members; see `core.step.plan.plan_step`."""
        return plan_step(self.shards, self.workers, self.shards_per_worker, num_members)

    def work_items(self, plan: Plan, place: int) -> list[WorkItem]:
        """Work of a member in every step: its shards one by one, or all of them as one."""
        if self.merges_shards:
            return plan.merged_work_items(place, self.num_leaves)
        return plan.work_items(place)

    @property
    def code_reference(self) -> str:
        """Reference to the code that workers import: `package.module:name` and so on."""
        return self.task

    @property
    def code_file(self) -> Path | None:
        """File with the task; None if it is built in, or in a module."""
        place = self.task.rpartition(":")[0]
        return Path(place) if place.endswith(".py") else None

    @property
    def library_variables(self) -> dict[str, str]:
        """Environment variables that must be set when a worker loads its libraries."""
        return {**self.env, **(PINNED if self.numerics == "portable" else {})}

    def changed_since(self, before: Mapping[str, Any]) -> str | None:
        """Key that gives other weights; see `run_keys.changed_key`. With `extend`, not `epochs`."""
        longer = self.extend and before.get("epochs", 0) <= self.epochs
        known = {**before, "epochs": self.epochs} if longer else before
        return changed_key(known, self.weights_config())

    def weights_config(self) -> dict[str, Any]:
        """The keys that decide the weights, as plain data."""
        not_in_weights = {"model": {"gradient_checkpointing", "cache", "path"}, "data": {"cache"}}
        whole = self.model_dump(mode="json", exclude=not_in_weights)
        keys = {key: value for key, value in whole.items() if key not in self.FREE_ON_RESUME}
        if self.merges_shards:  # last, because these follow from other keys
            keys |= {key: whole[key] for key in ("workers", "shards_per_worker", "balance")}
        return keys
