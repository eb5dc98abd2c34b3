"""Wrong gradients: others compute the same shards again, and the worker that is wrong leaves."""

import math

import pytest
import torch
from one_worker import SHARDS, VOTE, compute, loss_of, member_of
from several_workers import (
    are_all,
    assign,
    bits_of_one,
    lose,
    replicas_of,
    states,
    team_of,
    together,
    train,
)

from holdfast.arena.memory import Phase
from holdfast.collectives.barrier_tags import WorkerTag
from holdfast.collectives.group import newest_barrier
from holdfast.core.step.plan import Plan
from holdfast.errors import Aborted, HardwareError, JobError, NonFiniteError, ReplicaError

VERIFY = {"verify": {"recompute": 1}}
RECOMPUTE = {"non_finite": "recompute"}


def run(member, step, factor_of=lambda leaf, is_check: 1, scale=1, empty=()):
    """Compute a step until it counts, or fails; returns the work, and what it came to."""
    work_done = []
    stepper = member.stepper
    for _ in range(2):  # in doubt at most once
        while work := stepper.next_work():
            leaf = work.item.leaf
            work_done.append((leaf, work.is_check))
            assert len(work_done) < 99
            if leaf in empty:
                stepper.skip_shard(work)
            else:
                compute(stepper, member.model, work, factor_of(leaf, work.is_check), scale)
        committed = stepper.commit(step, VOTE, scale)
        if committed is not None:
            break
    assert committed is not None
    return work_done, committed


def wrong_once(rank, factor, *, is_check=False):
    """A worker that computes its first shard, or its first check, with another factor."""
    computed = []

    def of_member(member):
        def factor_of(leaf, checks):
            if member.group.rank != rank or checks != is_check or computed:
                return 1
            computed.append(leaf)
            return factor

        return factor_of

    return of_member, computed


def test_every_shard_is_verified_by_the_next_worker_in_every_step():
    with team_of(2, **VERIFY) as team:
        for step in range(2):
            found = together(team, lambda member, step=step: run(member, step)[0])
            assert found == [
                [(0, False), (1, False), (2, True), (3, True)],
                [(2, False), (3, False), (0, True), (1, True)],
            ]
        assert are_all(states(team), bits_of_one(range(2)))


def test_verified_shards_of_later_steps_are_others():
    with team_of(2, verify={"recompute": 0.5}) as team:
        checked = []
        for step in range(4):
            found = together(team, lambda member, step=step: run(member, step)[0])
            checked.append({leaf for work in found for leaf, is_check in work if is_check})
        assert all(len(each) == 2 for each in checked)
        assert set.union(*checked) == set(range(SHARDS))
        assert are_all(states(team), bits_of_one(range(4)))


@pytest.mark.parametrize("how", ["skipped", "weightless"])
def test_shards_without_samples_are_verified_as_such(how):
    def step(member):
        stepper = member.stepper
        while work := stepper.next_work():
            if work.item.leaf in (1, 2) and how == "skipped":
                stepper.skip_shard(work)
            elif work.item.leaf in (1, 2):
                stepper.begin_shard(work, seed=0)
                stepper.backward(loss_of(member.model, work.item.leaf) * math.nan, 0, scale=1)
                stepper.end_shard()
            else:
                compute(stepper, member.model, work)
        return stepper.commit(0, VOTE, scale=1).outcome()

    with team_of(2, **VERIFY) as team, team_of(1, exchange="arena") as alone:
        outcome, *others = together(team, step) + together(alone, step)
        assert math.isfinite(outcome.loss)
        assert all(each == outcome for each in others)
        assert are_all(states(team), alone[0].replica.flat)


@pytest.mark.parametrize("is_check", [False, True])
def test_the_worker_with_other_bits_than_all_leaves_and_the_others_complete_the_step(is_check):
    of_member, wrong = wrong_once(1, 1.5, is_check=is_check)
    with team_of(3, **VERIFY) as team:
        train(team, [0])
        before = states(team)
        errors = together(team, lambda member: run(member, 1, of_member(member)))
        assert [type(each) for each in errors] == [Aborted, HardwareError, Aborted]
        assert f"wrong gradient for shard {wrong[0]} in step 2:" in str(errors[1])
        assert are_all(states(team), before[0])
        remaining = lose(team, team[1])
        assign(remaining, 1, Plan.even(SHARDS, 2))
        train(remaining, [1])
        assert are_all(states(remaining), bits_of_one([0, 1]))


def test_wrong_buffers_are_a_wrong_result():
    with team_of(3, **VERIFY) as team:

        def step(member):
            stepper = member.stepper
            for _ in range(2):
                while work := stepper.next_work():
                    stepper.begin_shard(work, seed=0)
                    loss = loss_of(member.model, work.item.leaf)
                    stepper.backward(loss, 1 / SHARDS, scale=1)
                    if member.group.rank == 2 and not work.is_check:
                        member.model[1].running_mean.add_(1e-3)
                    stepper.end_shard()
                stepper.commit(0, VOTE, scale=1)

        errors = together(team, step)
        assert [type(each) for each in errors] == [Aborted, Aborted, HardwareError]


def test_two_workers_that_always_disagree_are_an_error_of_the_job():
    with team_of(2, **VERIFY) as team:
        train(team, [0])
        errors = together(team, lambda member: run(member, 1, lambda *_: 1 + member.group.rank / 8))
        (error,) = [each for each in errors if not isinstance(each, Aborted)][:1]
        assert isinstance(error, JobError)
        assert "rank 0 and rank 1 compute different gradients for shard " in str(error)
        assert "in step 2 from the same samples" in str(error)


def test_a_wrong_weight_is_no_wrong_gradient():
    with team_of(2, **VERIFY) as team:
        with torch.no_grad():
            team[1].model[2].weight[0, 0] += 1
        (error,) = [each for each in train(team, [0]) if not isinstance(each, Aborted)]
        assert isinstance(error, ReplicaError)
        assert "2.weight" in str(error)


@pytest.fixture
def lone():
    (replica,) = replicas_of(1)
    with member_of(replica, **RECOMPUTE) as member:
        yield member


ALL = [(leaf, False) for leaf in range(SHARDS)]
AGAIN = [(leaf, True) for leaf in range(SHARDS)]


@pytest.mark.parametrize("bad", [{2}, {1, 3}, {0, 1, 2, 3}], ids=str)
def test_the_first_shard_whose_gradient_is_never_finite_is_named(lone, bad):
    before = lone.replica.flat.clone()
    done = []

    def factor_of(leaf, is_check):
        done.append((leaf, is_check))
        return math.inf if leaf in bad else 1

    with pytest.raises(NonFiniteError) as caught:
        run(lone, 0, factor_of)
    cause = "so the cause is the data or the model, not the hardware"
    where = f"look at the samples of shard {min(bad)},"
    assert f"recomputing it gave the same bits, {cause}: {where}" in str(caught.value)
    assert "gradient of 0.weight" in str(caught.value)
    assert done == ALL + AGAIN
    assert newest_barrier(lone.arena, 0) == (WorkerTag.RECHECK, 0)
    assert torch.equal(lone.replica.flat, before)
    lone.stepper.restart()
    assert run(lone, 0)[0] == ALL
    assert torch.equal(lone.replica.flat, bits_of_one([0]))


def test_a_scaled_loss_may_be_the_cause_and_then_the_step_is_skipped():
    (replica,) = replicas_of(1)
    with member_of(replica, precision="fp16", **RECOMPUTE) as lone:
        run(lone, 0)
        before = replica.flat.clone()
        done, committed = run(lone, 1, lambda *_: math.inf, scale=2)
        assert committed.outcome().skipped
        assert done == ALL + AGAIN
        assert torch.equal(replica.flat, before)
        done, committed = run(lone, 2, scale=2)
        assert done == ALL
        assert not committed.outcome().skipped


def test_a_recheck_that_a_new_generation_interrupts_begins_again(lone):
    for _ in range(2):
        while work := lone.stepper.next_work():
            compute(lone.stepper, lone.model, work, math.inf)
        assert lone.stepper.commit(0, VOTE, scale=1) is None
        assert lone.stepper.next_work().is_check
        compute(lone.stepper, lone.model, lone.stepper.next_work(), math.inf)
        lone.stepper.resume(0)
        assert lone.stepper.next_work() is None, "the sums of the step are there"
    lone.stepper.abandon()
    assert run(lone, 0)[0] == ALL


@pytest.mark.parametrize(("width", "keys"), [(20_000, {}), (4, VERIFY)])
def test_a_worker_whose_gradient_was_not_finite_only_once_leaves(width, keys):
    of_member, _ = wrong_once(0, math.inf)
    with team_of(3, width=width, **RECOMPUTE, **keys) as team:
        train(team, [0])
        before = states(team)
        errors = together(team, lambda member: run(member, 1, of_member(member)))
        assert [type(each) for each in errors] == [HardwareError, Aborted, Aborted]
        assert "wrong gradient" in str(errors[0])
        assert "in step 2" in str(errors[0])
        assert are_all(states(team), before[0])
        remaining = lose(team, team[0])
        assign(remaining, 1, Plan.even(SHARDS, 2))
        train(remaining, [1])
        assert are_all(states(remaining), bits_of_one([0, 1], width=width))


@pytest.mark.parametrize(("width", "keys"), [(20_000, {}), (4, VERIFY)])
def test_workers_that_find_the_same_bits_blame_the_samples(width, keys):
    with team_of(2, width=width, **RECOMPUTE, **keys) as team:
        factors = {2: math.inf}
        errors = together(
            team, lambda each: run(each, 0, lambda leaf, _: factors.get(leaf, 1), empty=(3,))
        )
        for each in errors:
            assert isinstance(each, (NonFiniteError, Aborted))
        assert any("look at the samples of shard 2," in str(each) for each in errors)


def test_an_error_while_gradients_are_summed_costs_one_more_sum(lone):
    """As of memory that is wrong for a moment."""
    run(lone, 0)
    slot = lone.sections.slot(0, 0).gradients[1]
    sums = []

    def on_change(phase, _):
        if phase is Phase.REDUCE:
            sums.append(slot[0].item())
            slot[0] = math.inf if len(sums) == 1 else sums[0]

    lone.status.on_change = on_change
    done, committed = run(lone, 1)
    assert len(sums) == 2
    assert done == ALL
    assert not committed.outcome().skipped
    assert torch.equal(lone.replica.flat, bits_of_one([0, 1]))
