"""A job that trains a model: what follows from its keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Final

from holdfast.core.checkpoints.retention import RetentionPolicy
from holdfast.core.step import tree
from holdfast.core.step.plan import Plan, WorkItem, plan_step
from holdfast.errors import JobError
from holdfast.job.data import TextData
from holdfast.job.part import AUTO, MAX_SHARDS, Shards, Threads, Workers
from holdfast.job.run_keys import changed_key
from holdfast.job.settings import PINNED, ParallelSettings
from holdfast.job.train_keys import Exchange, TrainKeys

FINE: Final = 8
"""Shards per worker that a balance other than even divides well, where none are measured."""


class TrainRequest(TrainKeys):
    """Request to `holdfast train`: a model, its data and how it is trained.

    Some numbers may be `auto`, until `resolved` decides them for a run.
    """

    def check(self) -> None:
        """Raises: JobError: A key does not support the value of another."""
        _check_conflicts(self)

    def exchange_on(self, *, gpu: bool) -> Exchange:
        """The value of `exchange` for workers of a host on GPUs or CPUs. On GPUs that cannot be
        mapped, `mapped` becomes `staged`.
        """
        if self.exchange == "nccl":
            return "mapped"
        # A lone worker copies nothing to others, and its state outlives it.
        if self.exchange == "staged" and self._is_lone:
            return "alone"
        if self.exchange != "auto":
            return self.exchange
        # These compare partial sums of all workers, or have gradients elsewhere.
        if self.sync == "ddp" or self.non_finite == "recompute" or self.parallel.is_cut:
            return "arena"
        if self._is_lone:
            return "alone"
        is_in_arena = self.verify.recompute or self.adds_vectors
        return "mapped" if gpu and not is_in_arena else "arena"

    @property
    def _is_lone(self) -> bool:
        """True if no worker can join the only one."""
        return self.workers == 1 and self.max_workers in (None, 1) and self.most_hosts == 1

    @property
    def merges_shards(self) -> bool:
        """True if a worker's shards form one batch, so that the plan shows in the weights."""
        return self.numerics == "fast" or self.sync == "ddp"

    @property
    def adds_vectors(self) -> bool:
        """True if the gradient of each worker is one vector, which every worker may exchange with
        every other one, and not a number of partial sums.
        """
        return self.sync == "tree" and (self.collective != "tree" or self.compression.is_on)

    @property
    def keeps_errors(self) -> bool:
        """True if workers of several hosts keep what compression does not send."""
        is_lossy = self.compression.is_on and self.compression.error_feedback
        return is_lossy and self.adds_vectors and self.most_hosts > 1

    @property
    def weighs_shards(self) -> bool:
        """True if the number of shards is to be measured: they can be divided unevenly, and each
        costs time.
        """
        return self.shards == AUTO and self.balance != "even" and not self.merges_shards

    def _unmeasured_shards(self, workers: int) -> int:
        elastic = self.most_hosts * -(-workers // self.hosts) if self.max_hosts else workers
        least = self.max_workers or sum(self.shards_per_worker or ()) or elastic
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
        _check_parts(self.parallel, workers, shards)
        numbers = {"workers": workers, "threads_per_worker": threads, "shards": shards}
        job = TrainJob.model_validate(self.model_dump() | numbers)
        job.plan()  # refuses a worker without shards
        return job


class TrainJob(TrainRequest):
    """Job that a run executes: a `TrainRequest` with numbers.

    The keys in `FREE_ON_RESUME`, and a model's `gradient_checkpointing`, may differ when a run is
    resumed. None of them changes the weights on one kind of hardware, except `non_finite`, which
    lets a failed run continue, and with `compression` also `checkpoint`: a step before a checkpoint
    is sent whole.
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
            "max_hosts",
            "network",
            "etcd",
            "heartbeat",
            "max_workers",
            "extend",
            "stop_after_epochs",
            "shards_per_worker",
            "balance",
            "timeout_s",
            "exchange",
            "port",
            "parallel",
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
    def most_workers(self) -> int:
        """Most workers that the run can have: each has a shard, or a part of a divided model."""
        if self.parallel.is_cut:
            return self.workers
        most = max(self.max_workers or 0, self.wanted_workers)
        return max(self.workers, min(most, self.shards))

    @property
    def keeps_workers(self) -> bool:
        """True if the number of workers cannot change while the run trains."""
        return self.parallel.is_cut

    @property
    def retention(self) -> RetentionPolicy:
        """Rule for which checkpoints are kept."""
        return replace(self.checkpoint.retention, has_best=self.evaluation.best is not None)

    @property
    def has_process_groups(self) -> bool:
        """True if workers communicate through gloo or NCCL, where the failure of one shows in all
        the others.
        """
        return self.sync == "ddp" or self.parallel.is_cut

    @property
    def restarts_all(self) -> bool:
        """True if the failure of one worker restarts all of them from a checkpoint.

        A collective of gloo or NCCL cannot continue with a replacement.
        """
        return self.on_failure == "restart" or self.has_process_groups

    def keeps_snapshots(self, *, on_gpu: bool) -> bool:
        """True if the state is kept in the memory of hosts, too."""
        if self.checkpoint.memory == "auto":
            return (self._is_lone and on_gpu) or self.parallel.is_cut
        return self.checkpoint.memory == "always"

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
        return self.most_workers if self.merges_shards else self.shards

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
        """Work of a member in every step: its shards one by one, or all of them as one. The
        members that divide a model take turns.
        """
        if self.merges_shards:
            return plan.merged_work_items(place, self.num_leaves)
        if self.parallel.zero:  # neighbouring shards meet in each round
            return [WorkItem.of_shard(at) for at in range(place, self.shards, self.workers)]
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


def _check_conflicts(job: TrainKeys) -> None:
    """Raises: JobError: A key of the job does not support the value of another."""
    balance = f"balance={job.balance}"
    exchange = f"exchange={job.exchange}"
    hosts = f"hosts={job.hosts}"
    numerics = f"numerics={job.numerics}"
    is_uneven = job.balance != "even"
    is_alone = job.exchange == "alone"
    is_nccl = job.exchange == "nccl"
    is_on_device = is_alone or is_nccl or job.exchange in ("mapped", "staged")
    is_several = job.most_hosts > 1
    is_ddp = job.sync == "ddp"
    is_mixed = job.numerics == "mixed"
    is_vector = job.collective != "tree"
    collective = f"collective={job.collective}"
    is_compressed = job.compression.is_on
    compression = f"compression={job.compression.method}"
    recompute = ("non_finite=recompute", "non_finite=stop or skip")
    verify = ("verify.recompute", "verify.recompute=0")
    refused = (
        (is_mixed and job.non_finite == "recompute", "numerics=mixed", *recompute),
        (is_mixed and job.verify.recompute, "numerics=mixed", *verify),
        (is_uneven and job.shards_per_worker, balance, "shards_per_worker", "one of them"),
        (job.exchange != "auto" and is_ddp, exchange, "sync=ddp", "sync=tree"),
        (is_vector and is_ddp, collective, "sync=ddp", "sync=tree"),
        (is_vector and job.numerics != "fast", collective, numerics, "numerics=fast"),
        (is_vector and is_on_device, collective, exchange, "exchange=auto"),
        (is_compressed and is_vector, compression, collective, "collective=tree"),
        (is_compressed and is_on_device, compression, exchange, "exchange=auto"),
        (
            is_compressed and not is_ddp and job.numerics != "fast",
            *(compression, numerics, "numerics=fast"),
        ),
        (is_on_device and job.non_finite == "recompute", exchange, *recompute),
        (is_on_device and not is_alone and job.verify.recompute, exchange, *verify),
        (is_alone and job.workers != 1, exchange, f"workers={job.workers}", "exchange=auto"),
        (
            is_alone and (job.max_workers or 1) > 1,
            *(exchange, f"max_workers={job.max_workers}", "exchange=auto"),
        ),
        (is_nccl and not is_several, exchange, hosts, "exchange=auto"),
        (is_nccl and job.network == "tls", exchange, "network=tls", "network=trusted"),
        (is_several and job.non_finite == "recompute", hosts, *recompute),
        (is_several and job.verify.recompute, hosts, *verify),
        (is_several and job.workers == AUTO, hosts, "workers=auto", "a number of workers"),
        *_refused_with_parts(job),
    )
    for is_given, key, other, instead in refused:
        if is_given:
            raise JobError(f"{key} does not support {other}; set {instead}")
    if (gpus := job.resources.gpus) > 1:
        workers = "" if job.workers == AUTO else f", workers={gpus * job.workers}"
        raise JobError(
            f"resources.gpus={gpus} keeps GPUs from others that nothing uses: a worker "
            f"computes on one; set resources.gpus=1{workers}"
        )
    if job.workers != AUTO and job.workers < job.hosts:
        raise JobError(
            f"workers={job.workers} leaves some of hosts={job.hosts} without a worker; set "
            f"workers={job.hosts} or more"
        )


def _refused_with_parts(job: TrainKeys) -> list[tuple[object, str, str, str]]:
    """The keys that do not support a model that is divided over the workers."""
    parallel = job.parallel
    if not parallel.is_cut:
        return []
    refused: list[tuple[object, str, str]] = [
        (parallel.zero and parallel.pipeline > 1, "parallel.pipeline", "one of them"),
        (job.workers == AUTO, "workers=auto", "a number of workers"),
        (job.most_hosts > job.hosts, f"max_hosts={job.max_hosts}", f"hosts={job.hosts}"),
        (job.hosts > 1 and not parallel.zero, f"hosts={job.hosts}", "hosts=1"),
        (job.sync == "ddp", "sync=ddp", "sync=tree"),
        (job.compression.is_on, f"compression={job.compression.method}", "compression=none"),
        (job.numerics in ("fast", "mixed"), f"numerics={job.numerics}", "numerics=exact"),
        (job.balance != "even", f"balance={job.balance}", "balance=even"),
        (job.shards_per_worker, "shards_per_worker", "shards alone"),
        (job.exchange != "auto", f"exchange={job.exchange}", "exchange=auto"),
        (job.non_finite == "recompute", "non_finite=recompute", "non_finite=stop or skip"),
        (job.verify.recompute, "verify.recompute", "verify.recompute=0"),
        (job.compile, "compile", "compile=false"),
    ]
    return [(is_given, parallel.words, other, instead) for is_given, other, instead in refused]


def _check_parts(parallel: ParallelSettings, workers: int, shards: int) -> None:
    """Raises: JobError: So many workers cannot divide the model, or the shards."""
    if parallel.pipeline not in (1, workers):
        raise JobError(
            f"parallel.pipeline={parallel.pipeline} needs a worker for each stage; set "
            f"workers={parallel.pipeline}"
        )
    if parallel.zero and shards % workers:
        raise JobError(
            f"{parallel.words} needs as many shards on every worker: shards={shards} is no "
            f"multiple of workers={workers}; change one of them"
        )
