"""Plans: what is right is taken, what is wrong is named, and what is open is drawn in range."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import JobError
from holdfast.faults.fault_injector import FaultInjector
from holdfast.faults.plan import HARMLESS, WITHOUT_RANK, Fault, FaultPlan, of_file, of_flag
from holdfast.faults.plan import planned as planned_by
from holdfast.job import load

KINDS = ["kill", "stop", "exit", "raise", "slow", "nan", "flip", "corrupt-replica", "coordinator",
         "agent", "disk-full", "corrupt-checkpoint"]  # fmt: skip


def planned(*flags, file=None, seed=None, num_random=0):
    return planned_by(flags, file=file, seed=seed, num_random=num_random)


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_alone_is_a_fault(kind):
    assert of_flag(kind) == Fault(kind=kind)
    assert str(of_flag(kind)) == kind


@pytest.mark.parametrize(
    ("flag", "fault"),
    [
        ("kill:step=25,rank=1", Fault(kind="kill", step=25, rank=1)),
        ("slow:after_s=0.5,seconds=3", Fault(kind="slow", after_s=0.5, seconds=3)),
        ("coordinator:step=0", Fault(kind="coordinator", step=0)),
    ],
)
def test_keys_are_set_behind_a_colon(flag, fault):
    assert of_flag(flag) == fault
    assert of_flag(str(fault)) == fault


def test_what_is_slow_is_slow_for_a_second_unless_it_says_otherwise():
    assert of_flag("slow").lasts_s == 1
    assert of_flag("slow:seconds=0").lasts_s == 0


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("kil", "--fault kil: kind: input should be 'kill', 'stop', 'exit', 'raise', 'slow', "),
        ("", "kind: input should be 'kill', "),
        ("kill:stp=2", "--fault kill:stp=2: unknown key stp; did you mean step?"),
        ("kill:x=2", "unknown key x; use kind, rank, step, after_s, seconds"),
        ("kill:step", "'step' is not key=value, such as step=25 or rank=1"),
        ("kill:step=1,step=2", "'step' is given twice"),
        ("kill:kind=stop", "'kind' is given twice"),
        ("kill:step=x", "step: input should be a valid integer, not 'x'"),
        ("kill:rank=-1", "rank: input should be greater than or equal to 0, not '-1'"),
        ("kill:after_s=nan", "after_s: input should be a finite number"),
        ("kill:step=1,after_s=2", "step and after_s exclude each other; leave out one of them"),
        ("agent:rank=1", "agent has no target rank; leave out rank"),
        ("nan:seconds=3", "nan has no duration; leave out seconds"),
    ],
)
def test_a_wrong_flag_is_refused_by_name(flag, message):
    with pytest.raises(JobError) as caught:
        of_flag(flag)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_holds_a_seed_and_faults(tmp_path):
    path = tmp_path / "plan.yaml"
    path.write_text("seed: 7\nfaults:\n  - {kind: kill, step: 25, rank: 1}\n  - kind: nan\n")
    faults = (Fault(kind="kill", step=25, rank=1), Fault(kind="nan"))
    assert of_file(path) == FaultPlan(seed=7, faults=faults)
    assert planned("stop", file=path).faults == (*faults, Fault(kind="stop"))
    assert planned(file=path, seed=8).seed == 8


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("faults:\n- {kind: kill}\n- {kind: slow,\n   stp: 2}\n",
         ", line 4: unknown key faults.1.stp; did you mean step?"),
        ("\nsed: 1\n", ", line 2: unknown key sed; did you mean seed?"),
        ("seed: -1", ", line 1: seed: input should be greater than or equal to 0, not -1"),
        ("seed: 1\nseed: 2", ", line 2 cannot be read: 'seed' is given twice"),
        ("faults:\n  - rank: 1", ", line 2: faults.0.kind: field required"),
        ("faults: [3]", "faults.0: input should be a mapping of keys to values, not 3"),
        ("faults: 3", "faults: input should be a valid tuple"),
        ("faults: [{kind: agent, rank: 1}]", "agent has no target rank"),
        ("- kill", "must be a mapping of keys to values"),
        ("faults: [", "cannot be read"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_refused_with_its_line(tmp_path, text, message):
    path = tmp_path / "plan.yaml"
    path.write_text(text)
    with pytest.raises(JobError) as caught:
        of_file(path)
    assert str(caught.value).startswith(f"--plan {path}")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(JobError, match=r"--plan .*none\.yaml: No such file"):
        of_file(tmp_path / "none.yaml")
    (tmp_path / "odd.yaml").write_bytes(b"\xff\xfe")
    with pytest.raises(JobError, match="not a text in UTF-8"):
        of_file(tmp_path / "odd.yaml")


def test_no_fault_at_all_is_refused():
    with pytest.raises(JobError, match="no fault is planned; add --fault"):
        planned()


@pytest.mark.parametrize(
    ("flag", "keys", "message"),
    [
        ("kill:rank=2", {"workers": 2}, "kill:rank=2: rank must be below workers=2"),
        (
            "nan",
            {"sync": "ddp"},
            "nan: with sync=ddp or parallel no shard has a gradient of its own",
        ),
        ("flip", {"sync": "ddp"}, "flip: with sync=ddp"),
        ("nan:after_s=0", {"script": {"path": "a.py"}}, "nan:after_s=0.0: a script accepts"),
        ("kill:step=3", {"script": {"path": "a.py"}}, "kill:step=3: a script accepts"),
        ("kill", {"script": {"path": "a.py"}}, "stop, each with after_s"),
    ],
)
def test_a_fault_that_does_not_fit_the_job_is_refused(flag, keys, message):
    check = load.check_script if "script" in keys else load.check
    job = check(keys, where="test")
    with pytest.raises(JobError, match=message):
        FaultInjector(planned(flag), job)


@st.composite
def faults(draw):
    kind = draw(st.sampled_from(KINDS))
    rank = None if kind in WITHOUT_RANK else draw(st.none() | st.integers(0, 7))
    when = draw(st.sampled_from(["step", "after_s", None]))
    return Fault(kind=kind, rank=rank, **({when: draw(st.integers(0, 99))} if when else {}))


PLANS = st.builds(FaultPlan, seed=st.integers(0, 2**64), faults=st.lists(faults(), max_size=8))


@given(faults(), st.integers(0, 2**64), st.integers(1, 8), st.integers(0, 50), st.integers(1, 50))
def test_what_is_drawn_is_in_range_and_what_is_given_stays(fault, seed, workers, first, count):
    steps = range(first, first + count)
    (drawn,) = FaultPlan(seed=seed, faults=(fault,)).drawn(workers, steps)
    assert drawn.kind == fault.kind
    assert drawn.after_s == fault.after_s
    if fault.has_time:
        assert drawn.step == fault.step
    else:
        assert drawn.step in steps
    if fault.rank is None and fault.kind not in WITHOUT_RANK:
        assert drawn.rank in range(workers)
    else:
        assert drawn.rank == fault.rank


@given(PLANS, st.integers(1, 8))
def test_what_comes_first_is_first(plan, workers):
    steps = [fault.step or 0 for fault in plan.drawn(workers, range(50))]
    assert steps == sorted(steps)


@given(PLANS, st.integers(1, 8))
def test_the_same_seed_draws_the_same(plan, workers):
    assert plan.drawn(workers, range(50)) == plan.drawn(workers, range(50))


@given(st.integers(0, 2**64), st.integers(1, 20))
def test_random_faults_are_harmless_and_the_same_for_a_seed(seed, count):
    plan = planned(seed=seed, num_random=count)
    assert plan == planned(seed=seed, num_random=count)
    assert len(plan.faults) == count
    assert {fault.kind for fault in plan.faults} <= set(HARMLESS)


def test_another_fault_changes_nothing_in_those_before_it():
    few, more = planned("kill", "nan", seed=3), planned("kill", "nan", "agent:step=0", seed=3)
    assert set(map(str, few.drawn(4, range(90)))) < set(map(str, more.drawn(4, range(90))))


def test_a_run_without_steps_left_leaves_no_step_to_draw():
    (drawn,) = planned("kill").drawn(2, range(12, 12))
    assert drawn.step == 12
