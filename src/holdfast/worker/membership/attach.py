"""Attached models: the user's models and optimizers, and the replica that they are moved into."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import torch
from rich.filesize import decimal as in_words
from torch import nn
from torch.nn.parameter import UninitializedParameter
from torch.optim import Optimizer

from holdfast.arena.base_cache import Build
from holdfast.arena.device.mapped import MappedLayout, MappedMemory
from holdfast.arena.digest import digest
from holdfast.arena.layout import Layout
from holdfast.arena.memory import Arena
from holdfast.arena.nested_optimizers import parameters_of
from holdfast.arena.replica import Replica, Trained, replica_layout
from holdfast.arena.staging import NUM_BUFFERS
from holdfast.collectives.barrier_tags import WorkerTag
from holdfast.collectives.device_sums import largest_share
from holdfast.collectives.group import agree
from holdfast.collectives.slot import SlotLayout
from holdfast.core.step import tree
from holdfast.core.step.plan import WorkItem
from holdfast.core.step.seeds import seed_for
from holdfast.data.dataset import seed_everything
from holdfast.errors import JobError, NoStateError
from holdfast.job.settings import ParallelSettings
from holdfast.linux.host_memory import available
from holdfast.wire.messages import ResumeMessage
from holdfast.worker.agent_link import SelfEviction
from holdfast.worker.checks.numerics import compare, numerics_of
from holdfast.worker.context import WorkerContext
from holdfast.worker.devices import compile_module
from holdfast.worker.frozen_weights import Bases
from holdfast.worker.membership.initial_weights import InitialWeights
from holdfast.worker.shared_sections import Sections
from holdfast.worker.step.factory import StepperFactory, stepper_factory
from holdfast.worker.step.sharded.held_rows import most_exchanged
from holdfast.worker.user_state.user_state import UserState

ModelFactory = Callable[[], nn.Module]
DIFFERENT_WEIGHTS: Final = (
    "different weights; the model's factory must draw from torch's seeded generator only"
)
OptimizerFactory = Callable[[Any], Optimizer]
"""Called with the model if its first parameter is called `model`, else with the parameters that
require a gradient."""

_MODEL: Final = "model"


class AttachedModels:
    """Models and optimizers, the same on every worker, and their memory.

    Args:
        context: Context of this worker.
        arena: The host's shared memory.
        device: Device to compute on.
        folder: Default directory of the cache of bases.

    Attributes:
        module: The model that is trained, or a module whose attributes are the named models.
        optimizers: Optimizers of the models, in the order of their attachment.
        registered: Objects that user code registers, by name.
        device: The argument.
        bases: Frozen tensors that the models use.
        why_not_mapped: Reason for which the device has no memory that others can map; else empty.
        unlike: Differences between the numerics of the members; see `checks.numerics`.
        replica, sections: The memory, once the members have met; None before.
    """

    def __init__(
        self, context: WorkerContext, arena: Arena, device: torch.device, folder: Path
    ) -> None:
        self._context = context
        self._job = context.job
        self._group = context.group
        self._arena = arena
        self.device = device
        self.sections: Sections | None = None
        self.replica: Replica | None = None
        self.registered: dict[str, object] = {}
        self.bases = Bases(folder)
        self._is_initial = True  # until it gets another state
        self._is_named = False
        self.module = nn.Module()
        self.optimizers: list[Optimizer] = []
        self.why_not_mapped = ""
        self.unlike: tuple[str, ...] = ()
        self._partials = 0
        self._initial: list[InitialWeights] = []

    def base(
        self, name: str, build: Build, key: Mapping[str, Any], cache: Path | None
    ) -> Mapping[str, torch.Tensor]:
        """Map frozen tensors; see `Session.base`.

        Raises:
            JobError: They cannot be built, or there is a model already.
        """
        if self.optimizers:
            raise JobError("call session.base before session.attach, whose model uses it")
        return self.bases.map(name, build, key, cache)

    def add(
        self, model: ModelFactory, optimizer: OptimizerFactory, name: str
    ) -> tuple[nn.Module, Optimizer]:
        """Build a model and its optimizer; returns them as user code calls them.

        Args:
            model: Builds the model.
            optimizer: Builds its optimizer.
            name: Name of the model, where a run trains several; else empty.

        Raises:
            JobError: They cannot be trained, or the name is missing or taken.
        """
        self._check_name(name)
        # Every worker draws the same initial weights, whenever it is started.
        seed_everything(seed_for("attach", self._job.seed, *([name] if name else [])))
        factories: tuple[object, ...] = model, optimizer
        for each in factories:
            if isinstance(each, nn.Module | Optimizer):
                raise JobError(
                    f"session.attach was given a {type(each).__name__}; give it a function that "
                    "builds one: the initial weights come from the job's seed"
                )
        built = model()
        for at, module in built.named_modules():
            if isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
                raise JobError(
                    f"the model's factory wraps {at or 'the model'} in {type(module).__name__}; "
                    "remove it: the workers divide each batch, and their gradients are summed"
                )
        for at, parameter in built.named_parameters():
            if isinstance(parameter, UninitializedParameter):
                raise JobError(
                    f"{at} has no shape until the model is called; call it once in its factory"
                )
        if self.bases.digests and self._job.init_from is not None:
            raise JobError("init_from would write to frozen weights of session.base; remove it")
        # On a GPU this moves the model, so it comes before the optimizer, which holds its tensors.
        self.bases.adopt(built, name, self.device)
        self._initial.append(InitialWeights(self._job.init_from, built, name))
        built_optimizer = optimizer(
            built if _takes_model(optimizer) else [p for p in built.parameters() if p.requires_grad]
        )
        if not isinstance(built_optimizer, Optimizer):
            raise JobError(
                f"session.attach's optimizer factory returned a {type(built_optimizer).__name__}, "
                "which is no torch.optim.Optimizer; return one that holds the others, with a "
                "`step` that calls theirs"
            )
        # A wrapper that has not called the constructor of its base lacks its hooks.
        if "_optimizer_step_pre_hooks" not in vars(built_optimizer):
            Optimizer.__setstate__(built_optimizer, {"defaults": {}} | vars(built_optimizer))
        if not parameters_of(built_optimizer):
            raise JobError("the model has no parameter to train")
        self.optimizers.append(built_optimizer)
        if name:
            self.module.add_module(name, built)
            return built, built_optimizer
        self.module = built
        return self.steppers.model, built_optimizer

    def _check_name(self, name: str) -> None:
        taken = name in dict(self.module.named_children())
        if self.optimizers and (not name or taken or not self._is_named):
            raise JobError(
                "session.attach was called twice; to train several models, give each a name: "
                'session.attach(…, name="generator")'
            )
        if name and not name.isidentifier():
            raise JobError(f"session.attach needs a name like an identifier, not {name!r}")
        if name and self._job.sync == "ddp":
            raise JobError("several models cannot be trained with sync=ddp; set sync=tree")
        self._is_named = bool(name)

    @cached_property
    def steppers(self) -> StepperFactory:
        """Builds the stepper, and has the model as user code calls it."""
        return stepper_factory(self._job, self.module, self.device)

    def register(self, name: str, registered: object) -> None:
        """Make `registered` part of the run's state.

        Raises:
            JobError: The name is taken.
        """
        if name in self.registered or "." in name:
            raise JobError(f"session.register needs a unique name without dots, not {name!r}")
        self.registered[name] = registered

    def record_start(self, run_dir: Path | None) -> None:
        """Note that the run begins with the initial weights.

        Args:
            run_dir: Directory for a record of what was loaded; None if another worker writes it.

        Raises:
            JobError: `init_from` names no weights, or they do not fit.
            CheckpointError: They are in a checkpoint that is damaged.
        """
        for initial in self._initial:
            initial.begin(run_dir)

    @property
    def maps_memory(self) -> bool:
        """True if workers map the memory of each other's devices, where that is possible."""
        return self._job.exchange_on(gpu=self._is_on_gpu) == "mapped"

    @cached_property
    def mapped(self) -> MappedMemory | None:
        """Memory of the device that other workers map, and that outlives this one; None where
        there is none. It is allocated when it is first asked for.
        """
        is_alone = self._job.exchange_on(gpu=self._is_on_gpu) == "alone"
        if not (self.maps_memory or (is_alone and self._is_on_gpu)):
            return None
        slots = SlotLayout(self.trained.parameters(), self.trained.model_buffers())
        workers = self._job.most_workers
        is_shared = workers > 1
        layout = MappedLayout(
            replica_bytes=self._layout.size_bytes,
            share_bytes=largest_share(slots, workers),
            slot_bytes=slots.layout.size_bytes,
            num_slots=self._job.num_published if is_shared else 0,
        )
        try:
            return MappedMemory(self.device, layout)
        except OSError as error:
            self.why_not_mapped = str(error)
            return None

    def allocate(self, items: list[WorkItem], resume: ResumeMessage) -> tuple[Replica, Sections]:
        """Make sure that all members train the same model, and have memory for it.

        Args:
            items: Work of this worker in a step.
            resume: Says where its values come from.

        Raises:
            Aborted: The generation is over.
            SelfEviction: All start with the initial values, which this worker no longer has.
            JobError: They train different models, or the host has too little memory.
        """
        group = self._group
        size_bytes = self._layout.size_bytes
        # All would start from the initial weights, and this worker has overwritten its own.
        if not (resume.donors or resume.restore or self._is_initial):
            lost = "its donor was lost, and it no longer has the initial values"
            raise SelfEviction(NoStateError(f"has no state to start from: {lost}"))
        taken = resume.donors.get(group.rank, group.rank) != group.rank
        self._is_initial &= not (taken or resume.restore)
        # From here on members check in lockstep, barrier by barrier.
        self.bases.agree(group)
        # Before they share memory: a smaller layout would truncate that of other members.
        different = "different models: their shapes differ"
        agree(group, WorkerTag.ATTACH, 0, self._layout.digest, different)
        self.unlike = compare(group, numerics_of(self._job.numerics, self._job.model, self.device))
        if self.unlike and not self._job.allows_unlike_hosts:
            raise JobError(
                f"workers have different numerics: {', '.join(self.unlike)}; use GPUs and "
                "software of one kind, or start a new run with numerics=mixed"
            )
        # They do not depend on the membership, so later generations keep them.
        if self.sections is None:
            extra = self._job.keeps_snapshots(on_gpu=self._is_on_gpu)
            trained = self.trained.parameters()
            is_sharded = self._job.parallel.zero and not self._is_on_gpu
            self.sections = Sections(
                self._arena,
                trained if self.steppers.reduces_in_slots else {},
                self.trained.model_buffers(),
                num_leaves=self._job.num_leaves,
                num_shards=self._job.shards,
                replica_bytes=size_bytes,
                num_staged=NUM_BUFFERS + extra,
                num_partials=len(items) if self._job.parallel.zero else 0,
                keeps_errors=self._job.keeps_errors,
                exchanged_bytes=most_exchanged(trained, self._job.workers) if is_sharded else 0,
                mapped=self.mapped,
            )
        if resume.generation == 1 and group.member_index == 0:  # none of it is in use yet
            self._check_memory(self.sections)
        # No worker writes to memory before there is known to be enough.
        group.barrier(WorkerTag.ATTACH, 0)
        # With a donor the memory is left as it is: a lost worker may have left an intact replica
        # there.
        if self.replica is None:
            self.replica = self._moved_in(self.sections, items, empty=bool(resume.donors))
        return self.replica, self.sections

    def stage(self) -> None:
        """Prepare the slots of this worker in the arena, because its device cannot be read."""
        if self.sections is not None and self._partials:
            on_gpu = self._is_on_gpu
            self.sections.prepare(self._group.rank, self._partials, on_gpu=on_gpu)
            self._partials = 0

    @cached_property
    def trained(self) -> Trained:
        """Objects of which a replica consists: nothing can be registered after the first use."""
        kept = {name: each for name, each in self.registered.items() if isinstance(each, nn.Module)}
        return Trained(
            model=self.module,
            optimizers=tuple(self.optimizers),
            kept=kept,
            in_base=self.bases.names,
            bases=self.bases.digests,
        )

    @property
    def weights(self) -> dict[str, Any] | None:
        """Origin of frozen weights, and the sizes of all parts; None without them."""
        if not self.bases.digests:
            return None
        trained = self.trained.parameters().values()
        return {
            **self.bases.sources,
            "base_bytes": self.bases.size_bytes,
            "trained_parameters": sum(p.numel() for p in trained),
            "gradient_bytes": sum(p.nbytes for p in trained),
            "replica_bytes": self._layout.size_bytes,
        }

    @cached_property
    def user_state(self) -> UserState:
        """State that user code keeps apart from tensors."""
        return UserState(self.trained, self.registered)

    @cached_property
    def _layout(self) -> Layout:
        return replica_layout(self.trained)

    def _check_memory(self, sections: Sections) -> None:
        job = self._job
        # Where devices are read, nothing is written to the slots but what does not fit there.
        is_in_slots = self.mapped is None and not job.parallel.is_cut
        slots = job.workers * job.num_published if is_in_slots else 0
        gradient_bytes = sections.slot_layout.gradient_bytes
        replicas = 1 if job.parallel.is_cut else job.workers
        memory_bytes = replicas * self._layout.size_bytes + job.num_partials * gradient_bytes
        check_memory(
            sections.used_bytes(slots),
            0 if self._is_on_gpu else memory_bytes,
            self.bases.size_bytes,
            job.workers,
            job.num_partials,
            keeps_snapshots=job.keeps_snapshots(on_gpu=self._is_on_gpu),
        )

    @property
    def _is_on_gpu(self) -> bool:
        return self.device.type != "cpu"

    def _moved_in(self, sections: Sections, items: list[WorkItem], *, empty: bool) -> Replica:
        rank = self._group.rank
        if self.steppers.divide is not None:
            parallel = self._job.parallel
            check_divisible(self.trained, parallel, num_models=len(self.optimizers))
            self._check_weights()
            self.trained = self.steppers.divide(self.trained, self._layout, self._context)
        size_bytes = self.trained.size_bytes(self._layout)
        exchange = self._job.exchange_on(gpu=self._is_on_gpu)
        has_replica = not self._is_on_gpu and exchange in ("alone", "arena")
        self._partials = tree.partials_left([item.leaf for item in items], sections.num_leaves)
        is_in_slots = self.mapped is None and self.steppers.divide is None
        partials = self._partials if is_in_slots else 0
        replica_bytes = size_bytes if has_replica else 0
        sections.prepare(rank, partials, on_gpu=self._is_on_gpu, replica_bytes=replica_bytes)
        if self.mapped is not None:
            flat = self.mapped.replica
        elif has_replica:
            flat = sections.replica(rank, size_bytes)
        else:
            flat = torch.empty(size_bytes, dtype=torch.uint8, device=self.device)
        replica = Replica(self.trained, self._layout, flat, empty=empty)
        if self._job.compile:
            for each in self.module.children() if self._is_named else [self.module]:
                compile_module(each)
        return replica

    def _check_weights(self) -> None:
        """Raises: JobError: The members begin with different weights; later, each holds a part."""
        weights = {**self.trained.model_parameters(), **self.trained.model_buffers()}
        own_digest = digest(weights.values())
        agree(self._group, WorkerTag.ATTACH, 0, own_digest, DIFFERENT_WEIGHTS)


def _takes_model(factory: OptimizerFactory) -> bool:
    try:
        names = list(inspect.signature(factory).parameters)
    except (TypeError, ValueError):  # it has no signature
        return False
    return names[:1] == [_MODEL]


def check_memory(
    shared_bytes: int,
    own_bytes: int,
    base_bytes: int,
    workers: int,
    partials: int,
    *,
    keeps_snapshots: bool,
) -> None:
    """Compare the memory that the run needs at least with the available memory.

    What a model needs for its activations is not known yet and not counted.

    Args:
        shared_bytes: Size of what the workers share.
        own_bytes: Size of the replicas and gradients of all workers; 0 if they are on GPUs.
        base_bytes: Size of the bases, of which the host has one copy.
        workers: Workers of the run.
        partials: Partial sums that the workers hold together.
        keeps_snapshots: True if the workers share memory for snapshots, too.

    Raises:
        JobError: The run cannot fit.
    """
    host = available()
    # Activations come on top; they are not known yet, so this is a lower limit.
    needed = shared_bytes + own_bytes + base_bytes
    if needed <= host.size_bytes:
        return
    and_base = f", and {in_words(base_bytes)} for frozen weights" if base_bytes else ""
    advice = ["start fewer workers"] if workers > 1 else []
    advice += ["set fewer shards"] if partials > workers else []
    advice += ["set checkpoint.memory=never"] if keeps_snapshots else []
    advice += ["make the model smaller"]
    raise JobError(
        f"the run needs at least {in_words(needed)} of memory; only "
        f"{in_words(host.size_bytes)} are available of {host.limit}. {workers} workers keep "
        f"{in_words(own_bytes // workers)} each for weights, optimizer and gradients, and share "
        f"{in_words(shared_bytes)} for the gradient and the like{and_base}: {', '.join(advice)}, "
        "or give it more memory"
    )


def check_divisible(trained: Trained, parallel: ParallelSettings, *, num_models: int) -> None:
    """Check what is trained, before it is divided.

    Args:
        trained: The model and what belongs to it.
        parallel: Division of it.
        num_models: Models that user code has attached.

    Raises:
        JobError: It cannot be divided.
    """
    synchronized = any(isinstance(each, nn.SyncBatchNorm) for each in trained.model.modules())
    registered = next(iter(trained.kept), "")
    refused = (
        (num_models > 1, "several models", "attach one"),
        (trained.bases, "frozen tensors of session.base", "remove them"),
        (registered, f"a module given to session.register ({registered})", "remove it"),
        (synchronized, "SyncBatchNorm", "use BatchNorm, whose statistics are averaged"),
    )
    for is_given, what, instead in refused:
        if is_given:
            raise JobError(f"{parallel.words} does not support {what}; {instead}")
