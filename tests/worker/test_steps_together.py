"""Steps of several workers have the bits of one, whatever happens to a worker between them."""

import json
import math

import pytest
import torch
from one_worker import SHARDS, VOTE, compute, loss_of
from several_workers import (
    are_all,
    assign,
    bits_of_one,
    lose,
    partly_used_model,
    restore,
    sgd,
    states,
    team_of,
    together,
    train,
)

from holdfast.arena.memory import Phase, Word
from holdfast.collectives.barrier_tags import WorkerTag
from holdfast.collectives.group import newest_barrier
from holdfast.core.step.plan import Plan
from holdfast.errors import Aborted, NonFiniteError, ReplicaError
from holdfast.worker.step.commit import CommitVote, RequestFlags, UserStatesDiffer

STEPS = range(2)
EXCHANGES = pytest.mark.parametrize("exchange", ["arena", "staged"])


def fused(parameters):
    return torch.optim.AdamW(parameters, lr=0.01, fused=True)


@EXCHANGES
@pytest.mark.parametrize(
    ("workers", "hosts", "keys"),
    [(2, 1, {}), (3, 1, {"clip_norm": 0.1}), (2, 2, {"clip_norm": 0.1}), (4, 2, {})],
)
def test_workers_get_the_bits_of_one(exchange, workers, hosts, keys):
    with team_of(workers, hosts=hosts, exchange=exchange, **keys) as team:
        outcome, *others = train(team, STEPS)
        assert all(each == outcome for each in others)
        assert are_all(states(team), bits_of_one(STEPS, **keys))
        unused = team[0].model[0].unused
        assert torch.equal(unused, torch.ones(3)), "not even its weight decays"


def test_a_wide_model_is_sent_to_the_other_host_while_its_last_gradients_are_computed():
    with team_of(2, hosts=2, width=20_000) as team:
        hosts = [member.stepper._reducer.hosts for member in team]
        begun = {0: [], 1: []}

        def step(member):
            while work := member.stepper.next_work():
                member.stepper.begin_shard(work, seed=work.item.leaf)
                loss = loss_of(member.model, work.item.leaf)
                member.stepper.backward(loss, 1 / SHARDS, scale=1)
                begun[member.group.rank].append(hosts[member.group.rank].has_begun)
                member.stepper.end_shard()
            member.stepper.commit(0, VOTE, scale=1)

        together(team, step)
        assert begun == {0: [False, True], 1: [False, True]}
        train(team, [1])
        assert are_all(states(team), bits_of_one(STEPS, width=20_000))


@pytest.mark.parametrize("case", ["scaled", "weightless", "restarted"])
def test_hosts_exchange_no_gradient_before_it_is_final(case):
    precision = {"precision": "fp16"} if case == "scaled" else {}
    flats = []
    for hosts in (1, 2):
        with team_of(2, hosts=hosts, exchange="arena", width=20_000, **precision) as team:

            def step(member, case=case):
                stepper = member.stepper
                interrupted = case == "restarted"
                while work := stepper.next_work():
                    last = work.item.leaf % 2 == 1
                    stepper.begin_shard(work, seed=work.item.leaf)
                    loss = loss_of(member.model, work.item.leaf)
                    weight = 0 if last and case == "weightless" else 1 / SHARDS
                    scale = 4 if case == "scaled" else 1
                    stepper.backward(loss, weight, scale)
                    if last and interrupted:
                        interrupted = False
                        stepper.restart()
                        stepper.end_shard()
                    else:
                        stepper.end_shard()
                return stepper.commit(0, VOTE, scale=4 if case == "scaled" else 1)

            found = together(team, step)
            assert not any(isinstance(each, Exception) for each in found), found
            train(team, [1])
            flats += states(team)
    assert are_all(flats, flats[0])


@EXCHANGES
def test_a_fused_optimizer_gets_the_bits_of_one(exchange):
    with team_of(2, exchange=exchange, optimizer_of=fused, clip_norm=0.1) as team:
        train(team, STEPS)
        assert are_all(states(team), bits_of_one(STEPS, fused, clip_norm=0.1))


@EXCHANGES
@pytest.mark.parametrize("hosts", [1, 2])
def test_a_step_is_decided_on_every_host_before_the_first_weight_changes(exchange, hosts):
    with team_of(2, hosts=hosts, exchange=exchange) as team:
        seen = []

        def look(member):
            member.sections.intact.end_change(member.group.rank, 0)

            def on_gradients():
                rank = member.group.rank
                words = member.status[Word.REDUCED_STEP], member.status[Word.COMMITTED]
                is_whole = member.sections.intact.is_intact(rank, 0)
                (last, step) = newest_barrier(member.arena, rank)
                meets = last == WorkerTag.COMMIT
                seen.append((words, Phase(member.status[Word.PHASE]), is_whole, meets, step))

            member.stepper.on_gradients = on_gradients

        together(team, look)
        train(team, [0])
        assert seen == [((1, 0), Phase.OPTIMIZER, False, hosts == 2, 0)] * 2
        assert [member.status[Word.COMMITTED] for member in team] == [1, 1]
        assert [member.status.loss for member in team] == [pytest.approx(0.77, abs=0.5)] * 2


@EXCHANGES
def test_a_new_plan_leaves_what_others_have_computed(exchange):
    with team_of(2, exchange=exchange) as team:

        def begin(member):
            if member.group.rank == 0:
                compute(member.stepper, member.model, member.stepper.next_work())
                compute(member.stepper, member.model, member.stepper.next_work())

        together(team, begin)
        assign(team, 0, Plan(counts=(1, 3)))
        first, second = (member.stepper.next_work() for member in team)
        assert (first, second.item.leaf) == (None, 2), "leaf 1 is known to its new worker"
        train(team, STEPS)
        assert are_all(states(team), bits_of_one(STEPS))


@EXCHANGES
def test_remaining_workers_complete_a_step_with_what_they_have(exchange):
    with team_of(3, exchange=exchange) as team:
        train(team, [0])

        def begin(member):
            if member.stepper.next_work():
                compute(member.stepper, member.model, member.stepper.next_work())

        together(team, begin)
        remaining = lose(team, team[1])
        assign(remaining, 1, Plan.even(SHARDS, 2))
        assert [each.stepper.next_work().item.leaf for each in remaining] == [1, 2]
        train(remaining, [1])
        assert are_all(states(remaining), bits_of_one(STEPS))


@EXCHANGES
def test_a_worker_that_is_left_alone_continues(exchange):
    with team_of(2, exchange=exchange) as team:
        train(team, [0])
        (last,) = lose(team, team[0])
        assign([last], 1, Plan.even(SHARDS, 1))
        train([last], [1])
        assert torch.equal(last.replica.flat, bits_of_one(STEPS))


@EXCHANGES
@pytest.mark.parametrize("is_changed", [False, True])
def test_a_step_begins_again_if_a_new_plan_may_need_more_sums_than_there_are(exchange, is_changed):
    with team_of(3 if is_changed else 2, exchange=exchange, shards=32) as team:

        def begin(member):
            if member.group.rank == 0:  # every second shard, of which no two meet
                own = member.stepper.work_items
                for leaf in range(0, 24, 2):
                    work = next_with_leaf(member.stepper, leaf)
                    compute(member.stepper, member.model, work)
                member.stepper.work_items = own

        together(team, begin)
        remaining = lose(team, team[2]) if is_changed else team
        assign(remaining, 0, Plan.even(32, 2))
        assert remaining[0].stepper.next_work().item.leaf == (0 if is_changed else 1)


def next_with_leaf(stepper, leaf):
    """The work of a leaf, as a plan would assign it."""
    work = stepper.next_work()
    return type(work)(item=type(work.item).of_shard(leaf), is_check=False)


@EXCHANGES
@pytest.mark.parametrize(
    ("optimizer_of", "keys"),
    [(sgd, {"clip_norm": 0.1}), (fused, {"clip_norm": 0.1}), (sgd, {"numerics": "fast"})],
)
def test_a_step_that_another_worker_has_committed_is_completed(exchange, optimizer_of, keys):
    with team_of(2, exchange=exchange, optimizer_of=optimizer_of, **keys) as team:
        train(team, [0])
        before = states(team)
        train(team, [1])
        expected = states(team)
        restore(team, before)
        for member in team:
            member.status[Word.COMMITTED] = 1
        found = together(team, lambda member: member.stepper.complete(1))
        assert [each.step for each in found] == [1, 1]
        assert all(each.pending is None for each in found), "others get the state next"
        assert all(each.requests == RequestFlags.SAVE for each in found)
        assert are_all(states(team), expected[0])
        assert [member.status[Word.COMMITTED] for member in team] == [2, 2]
        assert train(team, [2])[0].norm > 0


@pytest.mark.parametrize(
    ("exchange", "optimizer_of"), [("arena", sgd), ("staged", sgd), ("staged", fused)]
)
@pytest.mark.parametrize("non_finite", ["stop", "skip"])
def test_a_bad_step_is_skipped_by_all_or_stops_all(exchange, optimizer_of, non_finite):
    keys = {"exchange": exchange, "optimizer_of": optimizer_of, "non_finite": non_finite}
    with team_of(2, **keys) as team:
        train(team, [0])
        before = states(team)
        found = train(team, [1], factor=math.inf)
        assert are_all(states(team), before[0])
        if non_finite == "skip":
            assert all(each.skipped for each in found)
            assert [member.status[Word.COMMITTED] for member in team] == [2, 2]
        else:
            for each in found:
                assert isinstance(each, NonFiniteError)
                assert "gradient of 0.weight, " in str(each)
                assert "in step 2 is not finite" in str(each)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_bad_step_that_others_have_committed_stops_unless_its_losses_may_be_scaled(precision):
    keys = {"exchange": "staged", "precision": precision, "optimizer_of": fused}
    with team_of(2, **keys) as team:
        train(team, [0])
        train(team, [1], factor=math.inf, scale=1 if precision == "fp32" else 2)
        found = together(team, lambda member: member.stepper.complete(1))
        for each in found:
            if precision == "fp32":
                assert isinstance(each, NonFiniteError)
            else:
                assert each.outcome().skipped


@EXCHANGES
def test_user_states_and_replicas_are_compared_before_anything_changes(exchange):
    with team_of(2, exchange=exchange) as team:
        before = states(team)

        def commit(member):
            own = member.group.rank
            while work := member.stepper.next_work():
                compute(member.stepper, member.model, work)
            vote = CommitVote(requests=VOTE.requests, user_state=own, replica=0, times=VOTE.times)
            return member.stepper.commit(0, vote, scale=1)

        assert {type(each) for each in together(team, commit)} <= {UserStatesDiffer, Aborted}
        assert are_all(states(team), before[0])


@EXCHANGES
def test_replicas_that_differ_are_found_before_they_are_updated(exchange):
    with team_of(2, exchange=exchange) as team:
        with torch.no_grad():
            team[1].model[1].running_mean.add_(1)
        start, end = team[1].replica.buffer_range
        team[1].replica.flat[start:end] ^= 1
        before = states(team)

        def commit(member):
            digest = member.replicas.digest(0)
            while work := member.stepper.next_work():
                compute(member.stepper, member.model, work)
            vote = CommitVote(
                requests=VOTE.requests, user_state=0, replica=digest, times=VOTE.times
            )
            return member.stepper.commit(0, vote, scale=1)

        found = together(team, commit)
        assert {type(each) for each in found} == {ReplicaError, Aborted}
        for member, flat in zip(team, before, strict=True):
            assert torch.equal(member.replica.flat, flat)


@pytest.mark.parametrize("non_finite", ["stop", "skip", "recompute"])
def test_a_wrong_weight_that_spoils_the_gradient_is_named(non_finite):
    with team_of(2, exchange="arena", non_finite=non_finite) as team:
        with torch.no_grad():
            team[1].model[2].weight[0, 0] = math.inf
        (error,) = [each for each in train(team, [0]) if not isinstance(each, Aborted)]
        assert isinstance(error, ReplicaError)
        assert "2.weight" in str(error)


@EXCHANGES
def test_workers_that_tolerate_other_bits_decide_by_one_norm(exchange):
    with team_of(2, exchange=exchange, optimizer_of=fused, clip_norm=0.1) as team:
        for member in team:
            member.replicas.begin_generation(tolerates=True)
        found = train(team, [0, 1])
        assert found[0] == found[1]
        assert all(newest_barrier(m.arena, m.group.rank)[0] != WorkerTag.COMMIT for m in team)
        assert are_all(states(team), bits_of_one([0, 1], fused, clip_norm=0.1))


def test_workers_that_merge_shards_add_by_the_algorithm_of_the_job(tmp_path):
    with team_of(4, numerics="fast", collective="ring", run_dir=tmp_path) as team:
        generation = team[0].arena.generation << 32
        before = [member.arena[member.group.rank, Word.ROUNDS] for member in team]
        assert before == [generation] * 4
        train(team, STEPS)
        assert all(member.arena[member.group.rank, Word.ROUNDS] > generation for member in team)
        first, *others = states(team)
        assert are_all(others, first)
        plain = partly_used_model()
        optimizer = sgd(plain.parameters())
        start = plain[1].running_mean.clone()
        for _ in STEPS:
            for shard in range(4):
                (loss_of(plain, shard) / 4).backward()
            optimizer.step()
            optimizer.zero_grad()
        assert not torch.equal(start, plain[1].running_mean)
        torch.testing.assert_close(
            dict(team[0].model.named_parameters()), dict(plain.named_parameters())
        )
    assert not (tmp_path / "events.jsonl").exists()


@pytest.mark.parametrize(
    ("keys", "event"),
    [
        ({"collective": "auto"}, "collective-chosen"),
        ({"compression": "bf16"}, "compression-unused"),
        ({"compression": "bf16", "hosts": 2}, "collective-chosen"),
    ],
    ids=str,
)
def test_one_worker_notes_how_gradients_are_added(tmp_path, keys, event):
    workers = 2 if "hosts" in keys else 3
    with team_of(workers, numerics="fast", run_dir=tmp_path, **keys) as team:
        train(team, [0, 1])
        first, *others = states(team)
        assert are_all(others, first)
        sent = [member.stepper.sends_whole for member in team]
        assert sent == ["hosts" not in keys] * workers
    (line,) = map(json.loads, (tmp_path / "events.jsonl").read_text().splitlines())
    assert (line["event"], line["step"]) == (event, 0)


def test_a_gradient_that_is_asked_for_whole_is_sent_whole():
    keys = {"numerics": "fast", "compression": "4bit", "hosts": 2}
    found = []
    for sends_whole in (False, True):
        with team_of(2, **keys) as team:
            for member in team:
                member.stepper.sends_whole = sends_whole
            train(team, [0])
            assert [member.stepper.sends_whole for member in team] == [sends_whole] * 2
            found.append(team[0].replica.flat.clone())
    with team_of(2, numerics="fast") as team:
        train(team, [0])
        whole = team[0].replica.flat
    assert [torch.equal(each, whole) for each in found] == [False, True]


COMPRESSION = {"method": "topk", "share": 0.1}


def test_a_compressed_step_that_is_skipped_leaves_no_error_behind():
    keys = {"numerics": "fast", "compression": COMPRESSION, "hosts": 2, "non_finite": "skip"}
    found = []
    for skips in (False, True):
        with team_of(2, **keys) as team:
            train(team, [0])
            if skips:
                assert train(team, [1], factor=math.inf)[0].skipped
            step = 1 + skips
            for member in team:
                member.stepper.assign(step, Plan.even(SHARDS, 2))
            train(team, [step])
            found.append(team[0].replica.flat)
    assert torch.equal(*found)
