"""The keys of a job that have keys of their own: optimizers, checkpoints, backup, evaluation and so
on.
"""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from holdfast.core.checkpoints.retention import RetentionPolicy
from holdfast.core.step.verification import MIN_SHARE
from holdfast.job.part import Address, AutoFlag, Count, Fraction, Spec

S3_VARIABLES: Final = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_REGION",
    "AWS_ENDPOINT_URL",
)

PINNED: Final = MappingProxyType(
    {"MKL_CBWR": "COMPATIBLE", "ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
)
"""Environment variables that MKL, ATen and oneDNN read when they are loaded, for `portable`: with
them, processors of different makers compute the same bits.

Libraries choose their kernels by the processor's instruction sets and, in MKL, by its maker, and
different kernels add in different orders. ATen and oneDNN are limited to AVX2, which x86-64
processors have had since 2013 (Intel) and 2015 (AMD). MKL needs its branch for all makers: its AVX2
branch on other processors differs from the one on Intel's.
"""


class Program(Spec):
    """The program that calls `holdfast.train`, as far as its workers must see what it sees: what an
    import of its file alone does not give. Users set none of this.

    Attributes:
        argv: Its `sys.argv`.
        changed: Globals that it may have changed, by module and name, as JSON; see `tasks.program`.
        dtype: The default of torch, such as `torch.float32`; empty if it has not imported torch.
    """

    argv: tuple[str, ...]
    changed: str = "{}"
    dtype: str = ""


class CheckpointSettings(Spec):
    """Times of checkpoints. The end of a run and a request to stop also write one."""

    every_steps: Annotated[int, Field(ge=0)] = 100
    """Steps between checkpoints; 0 disables this."""
    every_s: Annotated[float, Field(ge=0)] = 0.0
    """Seconds between checkpoints, counted from the newest one of any kind; 0 disables this."""
    every: Literal["auto"] | None = None
    """`auto` chooses the time between checkpoints by what they cost and how often the run fails, in
    place of `every_steps` and `every_s`."""
    busy: Literal["defer", "wait"] = "defer"
    """What a checkpoint does that is due while earlier ones are still being written: it is made at
    the first step where there is memory for it (defer), or training waits."""
    memory: Literal["auto", "always", "never"] = "auto"
    """Whether the state is kept in the host's memory too, as often as 3 % of the time allow. A run
    that has lost all of its workers, but not the agent, resumes from there. `auto`: for a single
    worker on a GPU, whose own memory is lost with it, and with `parallel`, where each failure
    restarts all workers."""
    keep: Count = 5
    """How many of the newest checkpoints to keep; older ones are deleted."""
    keep_every: Annotated[int, Field(ge=0)] = 0
    """Keep also the first checkpoint at or after each multiple of so many steps; 0: none."""
    sign: Path | None = None
    """File with an Ed25519 private key (PEM) that signs each manifest. A run then resumes only from
    checkpoints that this key has signed."""
    encrypt: Path | None = None
    """File with a key (32 bytes in base64) by which the stored state is encrypted."""

    @property
    def retention(self) -> RetentionPolicy:
        """Rule for which checkpoints are kept, except for the best; see `TrainJob.retention`."""
        return RetentionPolicy(last=self.keep, every=self.keep_every)

    @model_validator(mode="before")
    @classmethod
    def _auto_takes_the_place_of_others(cls, keys: Any) -> Any:
        if not isinstance(keys, dict) or keys.get("every") != "auto":
            return keys
        if keys.get("every_steps") or keys.get("every_s"):
            raise ValueError("every=auto chooses the interval; remove every_steps and every_s")
        return {**keys, "every_steps": 0}


class BackupSettings(Spec):
    """A second store, which gets a copy of the run while it trains. A URL alone is enough."""

    to: Address
    """A directory, or a URL: `s3://bucket/prefix`, `gs://…`, `az://…`. The run gets a folder of its
    own there."""
    every: Count = 1
    """Copy every so many checkpoints; at its end, the run's newest one is copied in any case."""
    every_s: Annotated[float, Field(ge=0)] = 0.0
    """Least number of seconds between two copies."""
    keep: Count = 2
    """Number of checkpoints to keep there; older ones are deleted."""

    @property
    def credentials(self) -> tuple[str, ...]:
        """Environment variables that lead to the store; any of them may be absent."""
        return S3_VARIABLES if self.to.startswith("s3:") else ()

    @model_validator(mode="before")
    @classmethod
    def _url_alone(cls, given: object) -> object:
        return {"to": str(given)} if isinstance(given, str | Path) else given


class EtcdSettings(Spec):
    """A cluster of etcd that keeps the leader and the journal of a run. A list of endpoints is
    enough.
    """

    endpoints: Annotated[tuple[Address, ...], Field(min_length=1)]
    """Addresses of the members of an etcd cluster, such as `https://10.0.0.9:2379`, that keeps the
    journal in place of the hosts. No effect on one host, with `--no-workers`, or where an engine
    starts the hosts."""
    ca: Path | None = None
    """File with the certificates (PEM) by which members are verified, on every host. By default
    those of the system."""
    certificate: Path | None = None
    """File with the certificate (PEM) that hosts show to members, on every host."""
    key: Path | None = None
    """File with its key (PEM), on every host; by default in the file of the certificate."""

    @model_validator(mode="before")
    @classmethod
    def _endpoints_alone(cls, given: object) -> object:
        return {"endpoints": given} if isinstance(given, list | tuple) else given

    @field_validator("endpoints")
    @classmethod
    def _are_encrypted(cls, endpoints: tuple[str, ...]) -> tuple[str, ...]:
        for endpoint in endpoints:
            parts = urlsplit(endpoint)
            is_web = parts.scheme in ("http", "https")
            if not is_web or not parts.hostname or not parts.port or parts.path:
                raise ValueError(
                    f"{endpoint} is no endpoint of etcd; give one such as https://10.0.0.9:2379"
                )
            if parts.scheme == "http" and not _is_loopback(parts.hostname):
                raise ValueError(
                    f"{endpoint} is not encrypted, and the journal has the keys of the run; have "
                    "etcd serve https, and name that"
                )
        return endpoints

    @model_validator(mode="after")
    def _key_needs_a_certificate(self) -> Self:
        if self.key is not None and self.certificate is None:
            raise ValueError("key needs the certificate that it belongs to; set etcd.certificate")
        return self


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


class Evaluation(Spec):
    """Times at which the task's test data is evaluated, and what follows from the result."""

    every_epochs: Count = 1
    """Epochs between evaluations; the last epoch is always evaluated."""
    best: str | None = None
    """The metric whose best checkpoint is kept, such as `accuracy`."""
    goal: Literal["max", "min"] = "max"
    """Whether a higher or a lower value of it is better."""
    patience: Count | None = None
    """Evaluations without improvement after which the run stops early."""

    @model_validator(mode="after")
    def _patience_needs_a_metric(self) -> Self:
        if self.patience is not None and self.best is None:
            raise ValueError("patience needs a metric to watch; set evaluation.best too")
        return self


class Heartbeat(Spec):
    """Time until a host is found to be lost."""

    interval_s: Annotated[float, Field(ge=0.05, le=60)] = 1.0
    """Seconds between two heartbeats of a host."""
    timeout_s: Annotated[float, Field(gt=0, le=600)] | None = None
    """Seconds without a heartbeat after which a host is probed, and is lost if it does not answer.
    By default 2 on several hosts. On one host, where only an agent that hangs is silent: 30."""

    @model_validator(mode="after")
    def _outlasts_the_interval(self) -> Self:
        if self.timeout_s is not None and self.timeout_s <= self.interval_s:
            raise ValueError("timeout_s must be longer than interval_s")
        return self


class InitFrom(Spec):
    """Source of the model's first weights. A path alone is enough."""

    path: Path
    """A run, a checkpoint, a file of `torch.save(model.state_dict(), …)` or safetensors, or a
    folder of the library transformers."""
    strict: bool = True
    """Whether all tensors must fit. If not, those that fit are loaded, and the others are listed
    in the run's events."""

    @model_validator(mode="before")
    @classmethod
    def _path_alone(cls, given: object) -> object:
        return {"path": given} if isinstance(given, str | Path) else given


class LoaderSettings(Spec):
    """Options for reading samples. None of these keys changes what is read."""

    prefetch: Annotated[int, Field(ge=0, le=64)] = 2
    """Shards that a worker reads ahead; at least as many as it has loader processes."""
    workers: Annotated[int, Field(ge=0, le=64)] = 0
    """Loader processes of each worker. With 0 the worker reads in a thread or, if the data set may
    draw from the global random generators, between shards."""
    pin_memory: AutoFlag = "auto"
    """Whether samples are copied to page-locked memory, from which they reach a GPU faster; no
    effect without CUDA. `auto`: for a worker that computes on a GPU."""


class DdpSettings(Spec):
    """Options of DistributedDataParallel, with its names and defaults; for `sync: ddp`."""

    find_unused_parameters: bool = False
    """Whether the loss may depend on some of the parameters only; costs a pass over its graph."""
    bucket_cap_mb: Annotated[float, Field(gt=0, le=1_000_000)] | None = None
    """Size of a bucket of gradients that are summed together, MiB. By default 25, the first 1."""
    gradient_as_bucket_view: bool = False
    """Whether gradients stay in the buckets, which saves a copy of them."""
    static_graph: bool = False
    """Whether each step uses the same parameters in the same way."""


class CompressionSettings(Spec):
    """How gradients are compressed. A method alone is enough."""

    method: Literal["none", "bf16", "int8", "4bit", "topk", "powersgd"] = "none"
    """`bf16`, `int8`, `4bit`: values are rounded to so many bits. `topk`: only the largest are
    sent. `powersgd`: matrices are sent as products of two narrow ones; with `sync: ddp` it starts
    again when a run is resumed or its workers restart."""
    share: Annotated[float, Field(gt=0, le=1)] = 0.01
    """Part of the values that `topk` sends."""
    rank: Count = 4
    """Width of the matrices of `powersgd`."""
    error_feedback: bool = True
    """Whether what a step does not send is added to the gradient of the next one. For `topk` with
    AdamW or momentum, `false` may learn better."""
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    """Steps before compression begins."""

    @property
    def is_on(self) -> bool:
        """True if gradients are compressed."""
        return self.method != "none"

    @model_validator(mode="before")
    @classmethod
    def _method_alone(cls, given: object) -> object:
        return {"method": given} if isinstance(given, str) else given

    @model_validator(mode="after")
    def _keys_need_their_method(self) -> Self:
        of_method = {"share": ("topk",), "rank": ("powersgd",)}
        for key in sorted(self.model_fields_set - {"method"}):
            methods = of_method.get(key, ("bf16", "int8", "4bit", "topk", "powersgd"))
            default = CompressionSettings.model_fields[key].default
            if self.method not in methods and getattr(self, key) != default:
                raise ValueError(
                    f"{key} needs method={' or '.join(methods)}; set it, or remove {key}"
                )
        return self


class ParallelSettings(Spec):
    """How a model is divided over the workers. By default each worker has all of it."""

    zero: Literal[0, 3] = 0
    """3: each worker keeps its rows of every parameter and of the optimizer's state, and gathers
    the layers that it computes (ZeRO stage 3, by PyTorch's `fully_shard`)."""
    pipeline: Count = 1
    """Stages: each worker has some of the layers, and every shard passes through all workers."""

    @property
    def is_cut(self) -> bool:
        """True if a worker holds a part of the model only."""
        return bool(self.zero) or self.pipeline > 1

    @property
    def words(self) -> str:
        """The key that is set, with its value, for messages."""
        return f"parallel.zero={self.zero}" if self.zero else f"parallel.pipeline={self.pipeline}"


class Verify(Spec):
    """Checks during the run, in addition to those that are always on."""

    recompute: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of shards that a second worker recomputes and compares before the step commits: one in
    N, where N is the largest prime that is at most 1 / recompute. 0, or at least 0.000001. No
    effect with one worker."""

    @field_validator("recompute")
    @classmethod
    def _is_within_reach(cls, share: float) -> float:
        if 0 < share < MIN_SHARE:
            raise ValueError(f"must be 0, or at least {MIN_SHARE:f}")
        return share


class Restarts(Spec):
    """The restart budget: failures tolerated per window. One more ends the run."""

    limit: Annotated[int, Field(ge=0)] = 10
    """Failures of workers or hosts tolerated within the window."""
    window_s: Annotated[float, Field(gt=0)] = 600.0
    """Length of the window, seconds."""


class AdamW(Spec):
    """Adam with decoupled weight decay (Loshchilov and Hutter, ICLR 2019)."""

    name: Literal["adamw"]
    lr: Annotated[float, Field(gt=0)] = 1e-3
    weight_decay: Annotated[float, Field(ge=0)] = 0.01


class Sgd(Spec):
    """Stochastic gradient descent with momentum."""

    name: Literal["sgd"]
    lr: Annotated[float, Field(gt=0)] = 0.1
    momentum: Fraction = 0.9
    weight_decay: Annotated[float, Field(ge=0)] = 0.0


class Constant(Spec):
    """A constant learning rate, after a linear warm-up."""

    name: Literal["constant"] = "constant"
    warmup_steps: Annotated[int, Field(ge=0)] = 0


class Cosine(Spec):
    """A learning rate that falls to zero along a half cosine, after a linear warm-up."""

    name: Literal["cosine"]
    warmup_steps: Annotated[int, Field(ge=0)] = 0


Optimizer = Annotated[AdamW | Sgd, Field(discriminator="name")]
Schedule = Annotated[Constant | Cosine, Field(discriminator="name")]
