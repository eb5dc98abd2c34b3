"""The keys of a job that trains a model, and what each may hold.

What a key may hold is written so that the message of a refused value says what is allowed.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Final, Literal

from pydantic import Field, ValidationInfo, field_validator

from holdfast.job.data import Data
from holdfast.job.models import Model
from holdfast.job.part import (
    AUTO,
    AutoShards,
    AutoThreads,
    Count,
    Port,
    Workers,
)
from holdfast.job.run_keys import RunKeys
from holdfast.job.settings import (
    PINNED,
    AdamW,
    BackupSettings,
    CheckpointSettings,
    CompressionSettings,
    Constant,
    DdpSettings,
    Evaluation,
    InitFrom,
    LoaderSettings,
    Optimizer,
    ParallelSettings,
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
NonFinite = Literal["stop", "skip", "recompute"]
Exchange = Literal["alone", "mapped", "staged", "arena"]
"""Where the workers of one host sum gradients."""


class TrainKeys(RunKeys):
    """The keys of a `TrainRequest`: a model, its data and how it is trained."""

    # The task: model, data and loss.
    task: str = "classification"
    """`classification`, `language`, `masked-language`, `qlora`, or your own: `package.module:name`
    or `path/to/file.py:name`, where name is a task class or a function that takes the session, or
    nothing. `path/to/file.py:__main__` is the file as a program."""
    arguments: tuple[str, ...] = ()
    """Command line of your own task, which it finds in `sys.argv`."""
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
    stop_after_epochs: Count | None = None
    """Number of epochs after which the run ends early, with a checkpoint. Schedules span all
    `epochs`. Resume it with a larger number, or with none, to continue."""
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
    """Largest number of workers that `holdfast scale` may give the run, or that it may be resumed
    with. By default `workers`, with `shards: auto`."""
    shards_per_worker: tuple[int, ...] | None = None
    """Number of shards of each worker; even by default."""
    balance: str = "even"
    """How many shards each worker computes: `even`, as many as `shards_per_worker` says;
    `proportional`, by the profile of its host; `dynamic`, as many as end a step soonest, from
    measured times; `hybrid`, by the profile until times are measured; or your own function, as
    `package.module:name` or `path/to/file.py:name`. The weights are the same, except with
    `sync: ddp` and `numerics: fast`, where they depend on the plan."""
    numerics: Literal["exact", "portable", "mixed", "fast"] = "exact"
    """`exact`: the same bits for every number of workers. `portable`: also on x86-64 processors of
    different makers; slower. `mixed`: hosts may have different processors or GPUs; replicas stay
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
    collective: Literal["tree", "ring", "halving", "hierarchical", "parameter-server", "auto"] = (
        "tree"
    )
    """The all-reduce of `sync: tree` on CPUs. `tree` adds along the tree over shards. The others
    need `numerics: fast`, since the bits depend on them: `ring`; `halving`, recursive halving and
    doubling; `hierarchical`, within each host and then between hosts; `parameter-server`, with a
    part of the gradient on every worker. `auto` measures the links of each generation and chooses
    what costs least."""
    compression: CompressionSettings = CompressionSettings()
    port: Port = 0
    """Port of the rendezvous of `sync: ddp` and of `parallel`, on the host of rank 0; 0 chooses a
    free port."""
    ddp: DdpSettings = DdpSettings()
    parallel: ParallelSettings = ParallelSettings()
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
    later. `restart`: all workers restart from the newest checkpoint; `sync: ddp` and `parallel` do
    this instead of the two before. `stop`: the run ends."""
    on_numerics_change: Literal["record", "fail"] = "record"
    """What happens when a run is resumed on other hardware or software than its checkpoint.
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


def _check_separate_shards(keys: ValidationInfo, instead: str) -> None:
    """Raises: ValueError: A worker's shards form one batch, so their bits cannot be compared."""
    if keys.data.get("sync") == "ddp" or keys.data.get("numerics") == "fast":
        raise ValueError(
            "recompute compares the bits of shards, which needs sync=tree and numerics=exact; "
            f"set those, or {instead}"
        )
