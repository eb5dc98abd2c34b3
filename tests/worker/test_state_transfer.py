"""A lost worker's replica is compared with the state that takes its place."""

import threading

import pytest
import torch

from holdfast.arena.memory import Arena
from holdfast.arena.replica import Replica, Trained, replica_layout
from holdfast.collectives.barrier_tags import describe
from holdfast.collectives.group import Group
from holdfast.errors import ReplicaError
from holdfast.wire.messages import ResumeMessage
from holdfast.worker.agent_link import SelfEviction
from holdfast.worker.membership.state_transfer import StateTransfer
from holdfast.worker.metrics import Metrics
from holdfast.worker.progress import Progress
from holdfast.worker.shared_sections import Sections

STEP = 7
PADDING = -1
"""The last byte of a replica: the bias is shorter than a cache line."""


class Worker:
    """One of two workers that have committed the same steps."""

    def __init__(self, fd, rank):
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 2)
        trained = Trained(model=model, optimizers=(torch.optim.SGD(model.parameters(), lr=0.1),))
        layout = replica_layout(trained)
        self.arena = arena = Arena(fd)
        self.sections = Sections(
            arena,
            dict(model.named_parameters()),
            {},
            num_leaves=2,
            num_shards=2,
            replica_bytes=layout.size_bytes,
        )
        self.group = Group(arena, rank, 20, describe)
        self.replica = Replica(trained, layout, self.sections.replica(rank, layout.size_bytes))
        self.sections.intact.end_change(rank, STEP)

    def transfer(self, *members):
        """Take part in a state transfer from rank 0."""
        self.group.enter(1, members)
        donors = dict.fromkeys(members, 0)
        resume = ResumeMessage(generation=1, members=members, step=STEP, donors=donors, restore=())
        transfer = StateTransfer(self.group, self.sections, self.replica)
        transfer.transfer(resume, Progress(step=STEP), Metrics("run"))


@pytest.fixture
def workers():
    arena = Arena.create(2)
    yield [Worker(arena.fd, rank) for rank in range(2)]
    arena.close()


def test_a_replacement_keeps_an_equal_replica_and_repairs_its_padding(workers):
    donor, joining = workers
    joining.replica.flat[PADDING] ^= 1
    threads = [threading.Thread(target=each.transfer, args=(0, 1)) for each in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert torch.equal(joining.replica.flat, donor.replica.flat)
    assert not joining.sections.intact.is_intact(1, STEP)


def test_padding_of_a_lost_replica_is_no_state(workers):
    donor, lost = workers
    lost.replica.flat[PADDING] ^= 1
    donor.transfer(0)


def test_a_replica_error_in_a_state_transfer_cannot_be_swallowed_by_user_code(workers):
    donor, lost = workers
    lost.replica.flat[0] ^= 1
    with pytest.raises(SelfEviction, match=r"tensor model\.\w+ of the failed rank 1") as caught:
        donor.transfer(0)
    assert not isinstance(caught.value, Exception)
    assert isinstance(caught.value.error, ReplicaError)


def test_a_rollback_forgets_the_replicas_of_removed_workers(workers):
    donor, lost = workers
    lost.replica.flat[0] ^= 1
    donor.arena.forget_replicas()
    donor.sections.intact.end_change(0, STEP)  # the run has come to the same step once more
    donor.transfer(0)
