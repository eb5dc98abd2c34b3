"""Workers without a run, each in a thread of its own, that train equal models together."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from one_worker import Member, finish, job_of, member_of, model_of, replica_of

from collective_hosts import Hosts


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.01)


def partly_used_model(width=4):
    """A model with a parameter that no shard uses, between others."""
    model = model_of(width=width)
    model[0].unused = torch.nn.Parameter(torch.ones(3))
    return model


def replicas_of(count, optimizer_of=sgd, width=4):
    """Equal replicas; not made in threads, which share a generator."""
    models = [partly_used_model(width) for _ in range(count)]
    return [replica_of(model, optimizer_of(model.parameters())) for model in models]


@contextmanager
def team_of(workers, *, optimizer_of=sgd, width=4, hosts=1, run_dir=None, **keys):
    """The workers of a job with these keys, which have begun its first step."""
    job = job_of(workers=workers, hosts=hosts, **keys)
    replicas = replicas_of(workers, optimizer_of, width)
    per_host = workers // hosts
    ranks = [range(at, at + per_host) for at in range(0, workers, per_host)]
    with Hosts(ranks) as found, ExitStack() as opened:
        entered = together(range(workers), found.member)
        groups = together(entered, opened.enter_context)
        directory = run_dir or Path(opened.enter_context(TemporaryDirectory()))
        team = []
        for group, replica in zip(groups, replicas, strict=True):
            team.append(Member(job, group._arena, group, replica, directory))
            opened.callback(team[-1].close)
        assign(team, 0, job.plan())
        yield team


def assign(team, step, plan):
    """Have all members follow a plan from a step on."""

    def begin(member):
        member.stepper.assign(step, plan)
        member.stepper.resume(step)

    found = together(team, begin)
    assert found == [None] * len(team), found


def lose(team, lost):
    """Begin the next generation without a member; returns the others."""
    remaining = [each for each in team if each is not lost]
    generation = team[0].group.generation + 1
    members = tuple(each.group.rank for each in remaining)
    for each in remaining:
        each.group.enter(generation, members)
    return remaining


def together(team, work):
    """What `work` returns, or raises, for each member. Once it has raised for one, the generation
    is over, as an agent says when a worker fails.
    """
    team = list(team)

    def run(member):
        try:
            return work(member)
        except Exception as error:  # the test looks at it
            if not isinstance(member, Member):
                raise
            member.arena.announce(member.group.generation + 1)
            return error

    with ThreadPoolExecutor(len(team)) as pool:
        return list(pool.map(run, team))


def train(team, steps, factor=1, scale=1):
    """Train for these steps, checks of results included; returns what the last one came to, or the
    error of each member.
    """

    def run(member):
        for step in steps:
            committed = finish(member.stepper, member.model, step, factor, scale)
            # In doubt: the second time it counts, or raises.
            committed = committed or finish(member.stepper, member.model, step, factor, scale)
            assert committed is not None
        return committed.outcome()

    return together(team, run)


def bits_of_one(steps, optimizer_of=sgd, width=4, **keys):
    """The replica of a lone worker after some steps."""
    (replica,) = replicas_of(1, optimizer_of, width)
    with member_of(replica, exchange="arena", **keys) as member:
        for step in steps:
            finish(member.stepper, member.model, step)
    return replica.flat


def are_all(flats, expected):
    return all(torch.equal(flat, expected) for flat in flats)


def states(team):
    return [member.replica.flat.clone() for member in team]


def restore(team, flats):
    """Give each replica the values of an earlier step, as a donor's would."""
    for member, flat in zip(team, flats, strict=True):
        member.replica.flat.copy_(flat)
        member.replica.restored(frozenset(member.replica.uninitialized))
