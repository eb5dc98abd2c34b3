"""A checkpoint is asked for once all parts of one try are there, and settled once."""

from holdfast.core.protocol import Part, Stage, Status, Verdict
from holdfast.core.saving import Saving


def status(host, *, generation=3, **parts):
    told = {int(rank[1:]): Part(number=number, step=8) for rank, number in parts.items()}
    return Status(host=host, number=1, generation=generation, stage=Stage.RUN, parts=told)


def test_the_last_part_asks_for_the_commit():
    saving = Saving()
    assert saving.collect(status("a", r0=1, r1=1), range(3)) == []
    (commit,) = saving.collect(status("b", r2=1), range(3))
    assert (commit.generation, commit.number, commit.step) == (3, 1, 8)
    assert list(commit.parts) == [0, 1, 2]


def test_parts_of_an_older_try_or_generation_do_not_count():
    saving = Saving()
    assert saving.collect(status("a", r0=1, r1=2), range(2)) == []
    assert saving.collect(status("a", r0=2, r1=2), range(2))[0].number == 2
    assert saving.collect(status("a", r0=3), range(2)) == []
    saving.begin_anew()
    assert saving.collect(status("a", r1=1), range(2)) == []


def test_a_second_try_of_a_step_is_not_settled_by_the_verdict_on_the_first():
    saving = Saving()
    saving.verdict = Verdict(generation=3, number=1, step=8, error="disk full")
    assert saving.is_settled(status("a", r0=1))
    assert not saving.is_settled(status("a", r0=2))
    assert not saving.is_settled(status("a", generation=4, r0=1))
    assert not saving.is_settled(status("a"))


def test_a_coordinator_learns_from_agents_what_one_before_it_has_said():
    saving = Saving()
    newest = Verdict(generation=3, number=2, step=8, error="disk full")
    for verdict in (None, newest, Verdict(generation=3, number=1, step=4), None):
        saving.hear(verdict)
    assert saving.verdict == newest
