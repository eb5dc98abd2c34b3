"""The keys that every job has: what coordinator and agents know of a run without its workload."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, Literal, Self, TypeAlias

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from holdfast.job.environment_names import TAKEN
from holdfast.job.part import AUTO, AutoWorkers, Spec
from holdfast.job.resources import Resources
from holdfast.job.settings import EtcdSettings, Heartbeat, Restarts
from holdfast.job.trackers import Trackers

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_SECRET: Final = re.compile(
    r"(^|_)(TOKENS?|SECRETS?|PASSWORDS?|PASSWD|PASSPHRASE|CREDENTIALS?|PSK|APIKEY|"
    r"(API|ACCESS|PRIVATE|SECRET|AUTH|ENCRYPTION)_KEYS?(_ID)?)($|_)",
    re.IGNORECASE,
)


def _checked(given: object) -> object:
    """The variables as text; what is no mapping is left to pydantic.

    Every host and every run directory has a copy of `job.yaml`. So a variable that looks like a
    secret is refused, and its value never repeated.
    """
    if not isinstance(given, Mapping):
        return given
    secrets = [str(name) for name in given if _SECRET.search(str(name))]
    if secrets:
        raise PydanticCustomError(
            "withheld",
            "{names} looks like a secret, and every run directory has a copy of the job; set it in "
            "the environment of each host, which workers inherit, and remove it here",
            {"names": " and ".join(secrets)},
        )
    problems = [problem for name, value in given.items() for problem in _problems(name, value)]
    if problems:
        raise ValueError("; ".join(problems))
    return {name: str(value) for name, value in given.items()}


def _problems(name: object, value: object) -> Iterator[str]:
    if not (isinstance(name, str) and _NAME.fullmatch(name)):
        yield f"{name!r} is no name of a variable; use letters, digits and underscores"
        return
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        yield f"{name} should be text or a number; write it in quotes"
    elif "\0" in str(value):
        yield f"{name} contains a null character; remove it"
    if name in TAKEN:
        yield f"{name} is not the job's to set; {TAKEN[name]}"


Environment: TypeAlias = Annotated[dict[str, str], BeforeValidator(_checked)]


def _are_variables(names: object) -> object:
    """Refuse what is not a list of names without repeating it: it may be an address."""
    if isinstance(names, list | tuple) and all(
        isinstance(name, str) and name.isidentifier() for name in names
    ):
        return names
    raise PydanticCustomError(
        "withheld",
        "input should be a list of environment variables, such as [MY_WEBHOOK], that contain the "
        "addresses",
    )


class RunKeys(Spec):
    """Keys for how the workers of a run are started, watched and restarted."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")] = "job"
    """Name of the job; its run directories start with it."""
    workers: AutoWorkers = 1
    """World size: number of worker processes. `auto`: what is fastest on this machine, measured."""
    hosts: Annotated[int, Field(ge=1, le=1024)] = 1
    """Hosts that a run begins with; each runs an equal share of the workers."""
    max_hosts: Annotated[int | None, Field(ge=1, le=1024)] = None
    """Most hosts of a run: others join while it trains, each with as many workers. By default
    `hosts`."""
    network: Literal["tls", "trusted"] = "tls"
    """How workers of different hosts exchange gradients and state. `tls`: encrypted. `trusted`: in
    plain, on a network that no one else can read or write to; all else is encrypted anyway."""
    etcd: EtcdSettings | None = None
    """The etcd cluster that keeps the run's leader and journal; by default the hosts do."""
    heartbeat: Heartbeat = Heartbeat()
    timeout_s: Annotated[float, Field(gt=0)] = 1800.0
    """Seconds that workers wait for each other before the run fails."""
    hang_timeout_s: Annotated[float, Field(gt=0)] = 60.0
    """Seconds that your code may spend idle in one shard, or in one batch of an evaluation, before
    its worker counts as hung and is replaced; at least three times the duration of its slowest
    recent shard. Idle: the worker and the processes that it started use less than 1 % of a CPU."""
    restarts: Restarts = Restarts()
    resources: Resources = Resources()
    env: Environment = Field(default_factory=dict)
    """Environment variables of the workers, such as `NCCL_DEBUG`. Those of NCCL and gloo come from
    here alone. No secrets: run directories have copies."""
    notify: Annotated[tuple[str, ...], BeforeValidator(_are_variables)] = ()
    """Names of environment variables, each of which holds an Apprise address. Recoveries and the
    end of the run are announced there."""
    trackers: Trackers = ()
    """Where parameters, metrics and artifacts are sent: `tensorboard`, `mlflow`, `wandb`, `otel`,
    or mappings with such a `name` and its settings. No step waits for them."""

    @model_validator(mode="after")
    def _hosts_are_in_order(self) -> Self:
        if self.most_hosts < self.hosts:
            raise ValueError(f"max_hosts={self.max_hosts} is less than hosts={self.hosts}")
        return self

    @property
    def most_hosts(self) -> int:
        """Most hosts that the run can have."""
        return self.max_hosts or self.hosts

    @property
    def equal_share(self) -> int:
        """Workers of each host before the run is scaled, rounded up; of a job with numbers."""
        assert self.workers != AUTO, "it has been resolved"
        return -(-self.workers // self.hosts)

    @property
    def wanted_workers(self) -> int:
        """Workers of the run once all hosts have joined, before it is scaled."""
        assert self.workers != AUTO, "it has been resolved"
        is_fixed = self.most_hosts == self.hosts
        return self.workers if is_fixed else self.equal_share * self.most_hosts

    @property
    def most_workers(self) -> int:
        """Most workers that the run can have."""
        return self.wanted_workers

    @property
    def workers_per_host(self) -> int:
        """Most workers that a host can run."""
        return -(-self.most_workers // self.most_hosts)


def changed_key(before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """The first key in which a job gives other weights than one that was run before, if any.

    Args:
        before: The other's `weights_config`. A key that it does not have is new, and has its
            default in this one.
        now: This one's.
    """
    return next((key for key in now if before.get(key, now[key]) != now[key]), None)
