"""Conflicts: pairs of keys that do not support each other's values."""

from __future__ import annotations

from holdfast.errors import JobError
from holdfast.job.part import AUTO
from holdfast.job.settings import ParallelSettings
from holdfast.job.train_keys import TrainKeys


def check(job: TrainKeys) -> None:
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


def check_parts(parallel: ParallelSettings, workers: int, shards: int) -> None:
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
