"""A model's buffers through a step: shards start from the committed ones, whatever happened."""

import pytest
import torch
from torch import nn

from holdfast.arena.replica import Replica, Trained, replica_layout
from holdfast.collectives.slot import Slot, SlotLayout
from holdfast.errors import JobError
from holdfast.worker.step.buffers import Buffers


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.other = nn.Linear(3, 1)
        self.register_buffer("mean", torch.zeros(3))
        self.other.register_buffer("shared", self.mean)
        self.register_buffer("later", None)


@pytest.fixture
def model():
    return Model()


@pytest.fixture
def slot_layout(model):
    return SlotLayout(dict(model.named_parameters()), dict(model.named_buffers()))


@pytest.fixture
def buffers(model, slot_layout):
    trained = Trained(model=model, optimizers=(torch.optim.SGD(model.parameters(), lr=0.1),))
    layout = replica_layout(trained)
    flat = torch.zeros(layout.size_bytes, dtype=torch.uint8)
    found = Buffers(Replica(trained, layout, flat), slot_layout)
    found.begin()
    return found


def values(model):
    return {name: buffer.clone() for name, buffer in model.named_buffers()}


def same(left, right):
    return left.keys() == right.keys() and all(torch.equal(left[k], right[k]) for k in left)


def test_every_shard_starts_from_the_committed_values(model, buffers):
    start = values(model)
    model.norm(torch.randn(8, 3))
    model.mean = model.mean + 1  # bound to another tensor in one of two places
    assert not same(values(model), start)
    buffers.begin()
    assert same(values(model), start)
    assert model.mean is model.other.shared


def test_an_evaluation_in_a_half_computed_shard_sees_the_committed_values(model, buffers):
    start = values(model)
    loss = model.norm(torch.randn(8, 3)).sum() + (model.mean * model.other.weight).sum()
    model.mean = 0.5 * model.mean + 1
    moved, bound = values(model), model.mean
    with buffers.committed():
        assert same(values(model), start)
    assert same(values(model), moved)
    assert model.mean is bound
    loss.backward()  # autograd has not seen the buffers change


def test_a_rebound_buffer_reaches_the_slot(model, buffers, slot_layout):
    memory = torch.zeros(slot_layout.layout.size_bytes, dtype=torch.uint8)
    slot = Slot(memory, slot_layout)
    model.other.shared = torch.full((3,), 2.0)
    changed = buffers.write_to(slot, 0.5)
    at = slot_layout.buffer_names.index("mean")
    assert torch.equal(slot.buffers[at], torch.ones(3))
    assert [changed[n] for n, _ in enumerate(changed)] == [n == at for n, _ in enumerate(changed)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: setattr(m, "later", torch.zeros(2)), "buffer later did not exist"),
        (lambda m: m.register_buffer("new", torch.zeros(2)), "buffer new did not exist"),
        (lambda m: setattr(m, "mean", torch.zeros(4)), r"buffer mean had shape \(3,\)"),
        (lambda m: setattr(m.norm, "running_mean", None), "buffer norm.running_mean had shape"),
    ],
)
def test_buffers_that_come_go_or_change_shape_are_refused(
    model, buffers, slot_layout, change, message
):
    slot = Slot(torch.zeros(slot_layout.layout.size_bytes, dtype=torch.uint8), slot_layout)
    change(model)
    with pytest.raises(JobError, match=message):
        buffers.write_to(slot, 1.0)


def test_values_in_other_memory_count(model, buffers, slot_layout):
    slot = Slot(torch.zeros(slot_layout.layout.size_bytes, dtype=torch.uint8), slot_layout)
    model.mean.data = torch.ones(3)
    changed = buffers.write_to(slot, 0.5)
    at = slot_layout.buffer_names.index("mean")
    assert changed.tolist() == [name == "mean" for name in slot_layout.buffer_names]
    assert slot.buffers[at].tolist() == [0.5] * 3
    buffers.begin()
    assert model.mean.tolist() == [0] * 3


def test_buffers_of_every_dtype_reach_the_slot():
    model = nn.Linear(1, 1)
    dtypes = (torch.float32, torch.complex64, torch.bool, torch.float64, torch.int64)
    for number, dtype in enumerate((*dtypes, torch.bfloat16, *dtypes)):
        model.register_buffer(f"b{number}", torch.full((number + 1,), number, dtype=dtype))
    model.register_buffer("last", torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last))
    given = values(model)
    layout = SlotLayout(dict(model.named_parameters()), given)
    trained = Trained(model=model, optimizers=(torch.optim.SGD(model.parameters(), lr=0.1),))
    packed = replica_layout(trained)
    replica = Replica(trained, packed, torch.zeros(packed.size_bytes, dtype=torch.uint8))
    buffers = Buffers(replica, layout)
    buffers.begin()
    slot = Slot(torch.zeros(layout.layout.size_bytes, dtype=torch.uint8), layout)
    buffers.write_to(slot, 2.0)
    for name, found in zip(layout.buffer_names, slot.buffers, strict=True):
        assert torch.equal(found, 2 * given[name])
    buffers.take(slot, torch.ones(len(layout.buffer_names)), slot.kept)
    for name, found in replica.buffers.items():
        assert torch.equal(found, given[name] * (2 if name in layout.buffer_names else 1))


def test_buffers_that_share_memory_keep_sharing_it():
    class Sharing(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(1, 1)
            self.register_buffer("whole", torch.zeros(4))
            self.register_buffer("part", self.whole[:2])

    model = Sharing()
    layout = SlotLayout(dict(model.named_parameters()), dict(model.named_buffers()))
    trained = Trained(model=model, optimizers=(torch.optim.SGD(model.parameters(), lr=0.1),))
    packed = replica_layout(trained)
    replica = Replica(trained, packed, torch.zeros(packed.size_bytes, dtype=torch.uint8))
    buffers = Buffers(replica, layout)
    buffers.begin()
    model.part.add_(1)
    assert model.whole.tolist() == [1, 1, 0, 0]
    buffers.commit()
    buffers.begin()
    assert replica.buffers["whole"].tolist() == model.whole.tolist() == [1, 1, 0, 0]
