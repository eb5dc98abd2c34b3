"""Which replicas are complete, and of which step."""

import torch

from holdfast.worker.sections import IntactReplicas


def test_a_replica_is_intact_between_changes_and_of_one_step_only():
    intact = IntactReplicas(torch.zeros(3, dtype=torch.int64))
    assert not intact.is_intact(0, 0)
    intact.end_change(0, 0)
    assert intact.is_intact(0, 0)
    assert not intact.is_intact(0, 1)
    intact.begin_change(0)
    assert not intact.is_intact(0, 0)


def test_no_replica_outlives_a_rollback():
    intact = IntactReplicas(torch.zeros(3, dtype=torch.int64))
    intact.end_change(2, 9)
    intact.forget()
    assert not any(intact.is_intact(2, step) for step in range(20))
