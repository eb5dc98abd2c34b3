"""Workers of a sharded model without a run: real processes that compute steps together."""

import multiprocessing
from pathlib import Path

import torch
from one_worker import VOTE

from holdfast.arena.memory import Arena
from holdfast.arena.replica import Replica, Trained, replica_layout
from holdfast.arena.worker_status import WorkerStatus
from holdfast.collectives.barrier_tags import describe
from holdfast.collectives.group import Group
from holdfast.job import load
from holdfast.wire.channel import pair
from holdfast.worker.agent_link import AgentLink
from holdfast.worker.checks.replica_checker import ReplicaChecker
from holdfast.worker.context import WorkerContext
from holdfast.worker.shared_sections import Sections
from holdfast.worker.step.factory import stepper_factory
from holdfast.worker.step.sharded import sharded_stepper as _imported_before_the_fork  # noqa: F401
from holdfast.worker.step.sharded.held_rows import most_exchanged
from holdfast.worker.step.stepper import StepContext


def train(model_of, optimizer_of, loss_of, num_workers, *, shards=8, steps=3, **keys):
    """Train on workers in processes of their own; returns the whole state by name, and the norm of
    each step.

    Args:
        model_of: Builds the model.
        optimizer_of: Builds its optimizer, from its parameters.
        loss_of: Gives loss and weight, from the model, a step and a shard.
        num_workers: Workers; one has the whole model.
        keys: Keys of the job.
    """
    zero = 3 if num_workers > 1 else 0
    own = {"name": "digits", "data": {"name": "digits"}, "workers": num_workers, "shards": shards}
    job = load.check(own | {"parallel": {"zero": zero}} | keys, where="test")
    arena = Arena.create(num_workers)
    fork = multiprocessing.get_context("fork")
    results = [fork.SimpleQueue() for _ in range(num_workers)]
    processes = [
        fork.Process(
            target=_work,
            args=(arena.fd, rank, job, model_of, optimizer_of, loss_of, steps, result),
        )
        for rank, result in enumerate(results)
    ]
    for process in processes:
        process.start()
    state = {}
    for result in results:
        part, norms = result.get()
        if isinstance(part, Exception):
            raise part
        for name, (start, flat, size) in part.items():
            whole = state.setdefault(name, torch.zeros(size, dtype=torch.uint8))
            whole[start : start + len(flat)] = torch.frombuffer(bytearray(flat), dtype=torch.uint8)
    for process in processes:
        process.join()
    arena.close()
    return {name: bytes(each.tolist()) for name, each in state.items()}, norms


def _work(fd, rank, job, model_of, optimizer_of, loss_of, steps, result):
    torch.set_num_threads(1)
    try:
        result.put(_trained(fd, rank, job, model_of, optimizer_of, loss_of, steps))
    except Exception as error:  # noqa: BLE001  # the test raises it
        result.put((error, []))


def _trained(fd, rank, job, model_of, optimizer_of, loss_of, steps):
    arena = Arena(fd)
    group = Group(arena, rank, 20.0, describe)
    group.enter(1, tuple(range(job.workers)))
    near, _far = pair()
    worker = WorkerContext.of(job, group, AgentLink(WorkerStatus(arena, rank), arena, near), arena)
    torch.manual_seed(0)
    model = model_of()
    optimizer = optimizer_of(list(model.parameters()))
    trained = Trained(model=model, optimizers=(optimizer,))
    layout = replica_layout(trained)
    factory = stepper_factory(job, model, torch.device("cpu"))
    sections = Sections(
        arena,
        trained.parameters() if factory.reduces_in_slots else {},
        trained.model_buffers(),
        num_leaves=job.num_leaves,
        num_shards=job.shards,
        replica_bytes=layout.size_bytes,
        exchanged_bytes=most_exchanged(trained.parameters(), num_workers=job.workers),
    )
    if factory.divide:
        trained = factory.divide(trained, layout, worker)
    flat = sections.replica(rank, trained.size_bytes(layout))
    replica = Replica(trained, layout, flat)
    stepper = factory.build(
        StepContext(
            replica=replica,
            trained=trained.parameters(),
            sections=sections,
            replicas=ReplicaChecker(replica, group, 0),
            worker=worker,
            run_dir=Path(),
        )
    )
    stepper.assign(0, job.plan())
    stepper.resume(0)
    norms = []
    for step in range(steps):
        while work := stepper.next_work():
            stepper.begin_shard(work, seed=work.item.leaf)
            loss, weight = loss_of(model, step, work.item.leaf)
            stepper.backward(loss, weight, scale=1)
            stepper.end_shard()
        norms.append(stepper.commit(step, VOTE, scale=1).outcome().norm)
    return _state(replica), norms


def _state(replica):
    """The place, the bytes and the size of the whole of each tensor that a worker holds."""
    found = {}
    for entry in replica.holding.whole.entries:
        for piece in replica.holding.between(entry.offset, entry.end):
            held = replica.flat[piece.own : piece.own + piece.size]
            start = piece.start - entry.offset
            found[entry.name] = start, bytes(held.tolist()), entry.size_bytes
    return found
