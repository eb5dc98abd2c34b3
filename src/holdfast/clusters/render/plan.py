"""Plan: what is rendered for a job, as numbers and names."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from holdfast.errors import JobError
from holdfast.job import load
from holdfast.job.trackers import CREDENTIALS
from holdfast.job.train_job import TrainJob

_IMAGE: Final = re.compile(r"[\w.:/@-]+", re.ASCII)
_LABEL: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")
"""A DNS label, with space for what is appended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostAmounts:
    """Cores, main memory and GPUs that a job asks for on each of its hosts."""

    cpus: int
    memory_bytes: int
    gpus: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderPlan:
    """Values that are rendered for a job.

    Attributes:
        name: Name of the job, as a DNS label; the names of all objects begin with it.
        namespace: Namespace of the objects.
        image: Image of all containers.
        hosts: Pods that train, each with an agent. The coordinator's is one more.
        least_hosts: The fewest of them to begin with.
        cpus: Cores of each of them.
        memory_bytes: Main memory of each of them.
        gpus: GPUs of each of them where there are GPUs.
        needs_gpus: True if the job says that it needs them.
        job: The job, as YAML.
        variables: Environment variables of the coordinator that contain secrets.
        credentials: Variables for trackers and the backup; any of them may be absent.
        has_metrics: True if the coordinator serves metrics to a Prometheus in the cluster.
    """

    name: str
    namespace: str
    image: str
    hosts: int
    least_hosts: int
    cpus: int
    memory_bytes: int
    gpus: int
    needs_gpus: bool
    job: str
    variables: tuple[str, ...]
    credentials: tuple[str, ...] = ()
    has_metrics: bool = False

    def named(self, suffix: str) -> str:
        """The name of an object."""
        return f"{self.name}-{suffix}"


def plan_of(
    job: TrainJob, image: str, namespace: str | None = None, *, has_metrics: bool = False
) -> RenderPlan:
    """The plan for a job on several hosts.

    Args:
        job: The job.
        image: Image of all containers, with its tag or digest.
        namespace: By default one with the name of the job.
        has_metrics: See `RenderPlan`.

    Raises:
        JobError: Something in it cannot be rendered.
    """
    if job.most_hosts < 2:
        raise JobError("pods need a run on several hosts; give --hosts, at least 2")
    _check_image(image)
    _check_paths(job)
    name = _label(job.name)
    space = namespace or name
    if not _LABEL.fullmatch(space):
        raise JobError(
            f"namespace {space!r} is not a name of Kubernetes: use at most 40 of a-z, 0-9 and -"
        )
    amounts = amounts_on_host(job)
    credentials = [name for spec in job.trackers for name in CREDENTIALS.get(spec.name, ())]
    if job.backup is not None:
        credentials += job.backup.credentials
    if job.resources.memory_bytes == 0:
        raise JobError(
            "a pod needs a limit of memory; say what a worker needs, such as resources.memory=4GiB"
        )
    return RenderPlan(
        name=name,
        namespace=space,
        image=image,
        hosts=job.most_hosts,
        least_hosts=job.hosts,
        cpus=amounts.cpus,
        memory_bytes=amounts.memory_bytes,
        gpus=amounts.gpus or job.workers_per_host,
        needs_gpus=job.resources.gpus > 0,
        job=load.dump(job),
        variables=job.notify,
        credentials=tuple(credentials),
        has_metrics=has_metrics,
    )


def amounts_on_host(job: TrainJob) -> HostAmounts:
    """Amounts for the workers of one host."""
    each = job.resources
    workers = job.workers_per_host
    return HostAmounts(
        cpus=workers * max(each.cpus, job.threads_per_worker),
        memory_bytes=workers * each.memory_bytes,
        gpus=workers * each.gpus,
    )


def _label(name: str) -> str:
    label = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    if not _LABEL.fullmatch(label):
        raise JobError(
            f"name={name} makes too long a name in Kubernetes; use at most 40 characters"
        )
    return label


def _check_image(image: str) -> None:
    if not _IMAGE.fullmatch(image):
        raise JobError(f"--image {image!r} is not an image; give REGISTRY/NAME:TAG")
    name, _, digest = image.partition("@")
    tag = name.rpartition("/")[2].partition(":")[2]
    if not digest and tag in ("", "latest"):
        raise JobError(
            f"--image {image} can change between two starts of a pod; give a tag other than "
            "latest, or a digest"
        )


def _check_paths(job: TrainJob) -> None:
    """Raises: JobError: A file is named by a path that a container does not know."""
    paths = {"data.path": getattr(job.data, "path", None)}
    if job.init_from is not None:
        paths["init_from.path"] = job.init_from.path
    if ".py:" in job.task:
        paths["task"] = job.task
    for key, path in paths.items():
        if path is not None and not str(path).startswith("/"):
            raise JobError(
                f"{key}={path} is relative to a folder of this host; give the absolute path that "
                "it has in the image or in a volume"
            )
