"""Codecs, and all-reduces that compress what crosses hosts."""

import threading

import pytest
import torch

from collective_hosts import Hosts
from holdfast.collectives.algorithms.compressed_sums import CompressedSums, EncodedVector
from holdfast.collectives.algorithms.low_rank import LowRankVector, matrices_of
from holdfast.collectives.barrier_tags import ReduceTag
from holdfast.collectives.compression.codec import PIECE, size_of, spans
from holdfast.collectives.compression.codecs import codec_of, ratio_of
from holdfast.collectives.compression.feedback import ErrorFeedback, ErrorMemory
from holdfast.collectives.slot import SlotLayout
from holdfast.job.settings import CompressionSettings

METHODS = ("bf16", "int8", "4bit", "topk")
COUNTS = (1, 2, 127, 128, 129, 255, 256, 1000, 4097, PIECE)
HALF_STEP = {"bf16": 2**-8, "int8": 0.5 / 127, "4bit": 0.5 / 7}
"""Largest error of a value, as a part of the largest one of its block."""


def named(method, **keys):
    return codec_of(CompressionSettings(method=method, **keys))


def drawn(count, seed=0):
    return torch.randn(count, generator=torch.Generator().manual_seed(seed))


def decoded(codec, values):
    data = torch.full((codec.size(len(values)),), 255, dtype=torch.uint8)
    codec.encode(values.clone(), data)
    out = torch.full_like(values, 7.0)
    codec.decode(data, out)
    return out


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("method", HALF_STEP)
def test_a_rounded_value_is_off_by_half_a_step_at_most(method, count):
    values = drawn(count)
    error = (decoded(named(method), values) - values).abs().max()
    assert error <= HALF_STEP[method] * values.abs().max() * 1.0001


def test_scales_follow_the_size_of_values_in_their_block():
    values = torch.cat([drawn(256) * 1e-6, drawn(256) * 1e6, torch.zeros(256)])
    found = decoded(named("int8"), values)
    assert (found[:256] - values[:256]).abs().max() < 1e-7
    assert not found[512:].any()


@pytest.mark.parametrize("count", COUNTS)
def test_the_largest_values_are_sent_with_their_places(count):
    values = drawn(count)
    found = decoded(named("topk", share=0.02), values)
    kept = max(1, round(0.02 * count))
    largest = values.abs().topk(kept).indices
    assert set(found.nonzero().view(-1).tolist()) == set(largest.tolist())
    assert torch.equal(found[largest], values[largest].bfloat16().float())


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("method", METHODS)
def test_a_value_that_is_not_finite_is_still_seen(method, value):
    values = drawn(1000)
    values[501] = value
    assert not decoded(named(method), values).isfinite().all()


@pytest.mark.parametrize("method", METHODS)
def test_messages_are_as_long_as_is_known_beforehand(method):
    codec = named(method)
    elements = range(3, 3 + 2 * PIECE + 77)
    pieces = list(spans(codec, elements))
    assert pieces[-1][1].stop == size_of(codec, len(elements))
    assert [piece.start for piece, _ in pieces] == [3, 3 + PIECE, 3 + 2 * PIECE]
    assert all(place.start % 4 == 0 for _, place in pieces)


def test_ratios():
    found = {method: ratio_of(named(method), 4) for method in METHODS}
    assert found["bf16"] == 2
    assert found["int8"] == pytest.approx(3.94, abs=0.01)
    assert found["4bit"] == pytest.approx(7.53, abs=0.01)
    assert found["topk"] == pytest.approx(100, rel=0.01)


class Workers:
    """Workers of several hosts, in threads, that add compressed vectors step by step."""

    def __init__(self, ranks, method, shapes, *, has_feedback=True):
        self.ranks = ranks
        self.method = method
        self.num_members = sum(map(len, ranks))
        self.layout = SlotLayout({name: torch.empty(shapes[name]) for name in shapes}, {})
        size = self.layout.sums_bytes
        self.vectors, self.messages = (
            [torch.zeros(size // 4) for _ in range(self.num_members)] for _ in range(2)
        )
        self.memories = [
            ErrorMemory(
                torch.zeros(self.num_members, 2, size, dtype=torch.uint8),
                torch.zeros(self.num_members, 2, dtype=torch.int64),
            )
            for _ in ranks
        ]
        self.has_feedback = has_feedback

    def run(self, steps, ranks=None, undone=()):
        """Run steps, `(number, is_whole)` each, in a generation; returns the results of each."""
        found = {}
        errors = []

        def work(hosts, rank):
            try:
                with hosts.member(rank) as group:
                    host = next(at for at, each in enumerate(hosts.ranks) if rank in each)
                    sums = self.sums_of(group, host)
                    for step, is_whole in steps:
                        self.vectors[rank].copy_(self.given(rank, step))
                        sums.add_up(step, is_whole=is_whole)
                        group.barrier(ReduceTag.REDUCED, step)
                        found[rank, step] = self.vectors[rank].clone()
                        first = self.vectors[0].view(torch.int32)  # NaN is not equal to itself
                        assert torch.equal(found[rank, step].view(torch.int32), first)
                        if step in undone:
                            sums.undo(step)
                        group.barrier(ReduceTag.CLIP, step)
            except Exception as error:  # noqa: BLE001  # of a thread
                errors.append(error)

        with Hosts(ranks or self.ranks) as hosts:
            members = range(hosts.num_members)
            threads = [threading.Thread(target=work, args=(hosts, rank)) for rank in members]
            for each in threads:
                each.start()
            for each in threads:
                each.join()
        assert not errors
        return {step: found[0, step] for step, _ in steps}

    def feedback_of(self, group, host):
        return ErrorFeedback(group, self.memories[host], self.layout)

    def sums_of(self, group, host):
        local, messages = (
            {rank: each[rank] for rank in group.local} for each in (self.vectors, self.messages)
        )
        if self.method == "powersgd":
            matrices = matrices_of(self.layout, 0, most=3)
            way = LowRankVector(group, group.network, local, messages, matrices)
        else:
            way = EncodedVector(group, group.network, local, named(self.method))
        feedback = self.feedback_of(group, host) if self.has_feedback else None
        return CompressedSums([self.vectors[group.rank]], [way], feedback)

    def given(self, rank, step):
        return drawn(len(self.vectors[0]), seed=100 * step + rank)

    def sum_given(self, step, members=None):
        members = range(self.num_members if members is None else members)
        return sum(self.given(rank, step).double() for rank in members)


HOSTS = ([[0], [1]], [[0], [1], [2]], [[0, 1], [2, 3]], [[0, 1], [2]], [[0, 2, 4], [1, 3]])
LONG = {"weight": (3 * PIECE + 100,)}
SHAPES = {"embedding": (60, 30), "bias": (7,), "kernel": (12, 5, 3, 3), "small": (2, 2)}


@pytest.mark.parametrize("method", [*METHODS, "powersgd"])
@pytest.mark.parametrize("ranks", HOSTS, ids=str)
def test_what_is_not_sent_in_one_step_is_sent_later(ranks, method):
    workers = Workers(ranks, method, SHAPES if method == "powersgd" else LONG)
    steps = [(0, False), (1, False), (2, False), (3, True), (4, False)]
    found = workers.run(steps)
    missing = torch.zeros(())
    for step, is_whole in steps:
        missing = missing + workers.sum_given(step) - found[step]
        assert (missing.abs().max() < 1e-4) == is_whole, step


def test_without_feedback_it_is_lost():
    workers = Workers([[0], [1]], "topk", LONG, has_feedback=False)
    found = workers.run([(0, False), (1, True)])
    assert (found[0] - workers.sum_given(0)).abs().max() > 0.1
    assert (found[1] - workers.sum_given(1)).abs().max() < 1e-5


@pytest.mark.parametrize("method", ["4bit", "powersgd"])
def test_a_step_that_is_computed_again_gives_the_same(method):
    workers = Workers([[0], [1]], method, SHAPES)
    workers.run([(0, True), (1, False)])
    first = workers.run([(2, False)])  # a generation of its own, whose step does not count
    assert torch.equal(workers.run([(2, False)])[2], first[2])


def test_fewer_workers_take_over_what_a_lost_one_of_their_host_has_kept():
    workers = Workers([[0], [1, 2]], "topk", LONG)
    sent = workers.run([(0, False), (1, False)])
    sent |= workers.run([(2, True)], ranks=[[0], [1]])
    wanted = workers.sum_given(0) + workers.sum_given(1) + workers.sum_given(2, members=2)
    assert (sum(map(torch.Tensor.double, sent.values())) - wanted).abs().max() < 1e-4


@pytest.mark.parametrize("method", [*METHODS, "powersgd"])
def test_a_gradient_that_is_not_finite_is_seen_by_all(method):
    workers = Workers([[0], [1]], method, SHAPES)
    given = workers.given
    workers.given = lambda rank, step: given(rank, step) * (float("inf") if rank else 1)
    assert not workers.run([(0, False)])[0].isfinite().all()


@pytest.mark.parametrize("method", ["topk", "powersgd"])
def test_a_step_that_is_skipped_leaves_all_as_it_was(method):
    workers = Workers([[0], [1]], method, SHAPES)
    given = workers.given
    workers.given = lambda rank, step: given(rank, step) * (float("nan") if step == 1 else 1)
    sent = workers.run([(0, False), (1, False), (2, False), (3, True)], undone=[1])
    wanted = workers.sum_given(0) + workers.sum_given(2) + workers.sum_given(3)
    assert (sent[0].double() + sent[2] + sent[3] - wanted).abs().max() < 1e-4


def test_matrices_that_get_smaller_are_sent_as_two():
    layout = Workers([[0], [1]], "powersgd", SHAPES).layout
    found = [(each.rows, each.columns, each.rank) for each in matrices_of(layout, 0, most=3)]
    assert found == [(60, 30, 3), (12, 45, 3)]
