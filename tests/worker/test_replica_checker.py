"""Replicas that differ are found, and the tensor is named."""

import threading

import pytest
import torch

from holdfast.arena.memory import Arena
from holdfast.arena.replica import Replica, Trained, replica_layout
from holdfast.collectives.barrier_tags import describe
from holdfast.collectives.group import Group
from holdfast.errors import Aborted, ReplicaError
from holdfast.worker.checks.replica_checker import ReplicaChecker


def replica_of_linear():
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    trained = Trained(model=model, optimizers=(torch.optim.SGD(model.parameters(), lr=0.1),))
    layout = replica_layout(trained)
    return Replica(trained, layout, torch.zeros(layout.size_bytes, dtype=torch.uint8))


@pytest.mark.parametrize(("byte", "name"), [(5, "weight"), (40, "weight"), (66, "bias")])
def test_a_flipped_bit_names_its_tensor_or_the_one_before_the_padding(byte, name):
    arena, found = Arena.create(2), []
    replicas = [replica_of_linear() for _ in range(2)]  # not in threads, which share a generator

    def check(rank):
        own = Arena(arena.fd)
        group, replica = Group(own, rank, 20, describe), replicas[rank]
        group.enter(1, (0, 1))
        replica.flat[byte] ^= rank
        try:
            ReplicaChecker(replica, group, 0).check_all(7)
        except ReplicaError as error:
            found.append(str(error))
            own.announce(2)
        except Aborted:
            pass

    threads = [threading.Thread(target=check, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    arena.close()
    (message,) = found
    assert f"model.{name}" in message
