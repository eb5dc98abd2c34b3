"""Batches reach a device once each, the next one while the current one is computed."""

from contextlib import contextmanager

import pytest
import torch

from holdfast.data.loading.loaded import Loaded
from holdfast.worker.devices import DeviceBatches

DEVICE = torch.device("meta")  # a device whose tensors are told from those that were loaded


class StandInStream:
    """A side stream that notes what is done with it; marks are numbered."""

    def __init__(self):
        self.log = []
        self.is_entered = False

    @contextmanager
    def entered(self):
        self.is_entered = True
        yield
        self.is_entered = False

    def mark(self):
        self.log.append("copied")
        return self.log.count("copied")

    def join(self, mark, tensors):
        self.log.append((mark, [id(each) for each in tensors]))


def loaded(number):
    return Loaded((torch.full((2,), float(number)), {"y": [torch.arange(2)], "name": "a"}), 2)


def test_the_next_batch_is_copied_on_the_side_and_joined_when_it_is_taken():
    side = StandInStream()
    batches = DeviceBatches(DEVICE, side)
    first, second = loaded(1), loaded(2)
    x, rest = batches.take(first)
    assert (x.device.type, side.log) == ("meta", [])  # nobody knew that it would come
    batches.copy_ahead(second)
    batches.copy_ahead(second)  # a shard in doubt is computed in between
    assert side.log == ["copied"]
    x, rest = batches.take(second)
    assert {x.device.type, rest["y"][0].device.type} == {"meta"}
    assert rest["name"] == "a"
    assert side.log == ["copied", (1, [id(x), id(rest["y"][0])])]
    batches.take(second)  # as a check, which has it copied again
    assert len(side.log) == 2


def test_a_batch_that_does_not_come_is_dropped():
    side = StandInStream()
    batches = DeviceBatches(DEVICE, side)
    batches.copy_ahead(loaded(1))
    other = loaded(2)
    assert batches.take(other)[0].device.type == "meta"
    assert side.log == ["copied"]
    batches.copy_ahead(other)
    batches.take(other)
    assert side.log[1:] == ["copied", (2, side.log[2][1])]


class Encoding:
    """As those of transformers, it copies itself, and its tensors are not to be seen."""

    def to(self, device):
        return (self, device)


@pytest.mark.parametrize("batch", [Encoding(), [Encoding()], {"x": (Encoding(),)}, None])
def test_what_copies_itself_is_not_copied_ahead(batch):
    side = StandInStream()
    batches = DeviceBatches(DEVICE, side)
    given = None if batch is None else Loaded(batch, 1)
    batches.copy_ahead(given)
    assert side.log == []
    if isinstance(batch, Encoding):
        assert batches.take(given) == (batch, DEVICE)


def test_on_a_cpu_the_batch_is_what_was_loaded():
    batches = DeviceBatches.of(torch.device("cpu"))
    given = loaded(1)
    batches.copy_ahead(given)
    assert batches.take(given) is given.batch
