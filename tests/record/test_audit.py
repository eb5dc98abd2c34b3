"""What an audit finds in the record of a run, and what it says that it cannot know."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import recorded_run
from checkpoints import layout_of, save, state_of
from holdfast.data.loading.order import SampleOrder
from holdfast.record.audit.audit import audit, check_samples
from holdfast.record.audit.lineage import lives_of, segments_of
from holdfast.record.audit.statement import Answer
from holdfast.record.audit.step_checks import Epoch, StepRow, epochs_of

LAYOUT = layout_of(width=2)
ORDER = {
    "num_samples": 640, "batch_size": 64, "num_shards": 8, "epochs": 6, "seed": 0,
    "fingerprint": "f", "drops_last": False, "samples": "digest",
}  # fmt: skip


def saved(run, step=40, loss=None, **facts):
    loss = 2 / step if loss is None else loss
    order = {key: value for key, value in {**ORDER, **facts}.items() if value is not None}
    return save(run / "checkpoints", step, state_of(LAYOUT), LAYOUT, loss=loss, order=order)


@pytest.fixture
def run(tmp_path):
    """A run of four epochs of ten steps; a worker was killed after step 20."""
    path = tmp_path / "run"
    recorded_run.write_run(path)
    saved(path)
    return path


def rewrite(path, change):
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    recorded_run.write(path, change(lines))


def outcomes(run):
    return {check.name: check.outcome for check in audit(run).checks}


def texts(run, outcome):
    return {check.name: check.text for check in audit(run).checks if check.outcome is outcome}


def test_a_whole_record_proves_everything(run):
    found = audit(run)
    assert {check.outcome for check in found.checks} == {Answer.OK}
    assert (found.steps, found.has_failed) == (40, False)
    assert found.epochs == tuple(
        Epoch(number=number, steps=10, samples=640, is_complete=True) for number in range(4)
    )
    assert [(each.first, each.last, each.generation) for each in found.segments] == [
        (1, 20, 1), (21, 40, 2)
    ]  # fmt: skip
    (life,) = found.lives
    assert life.generations[1].causes == ("rank 1 was killed by SIGKILL",)


def without(step):
    return lambda lines: [line for line in lines if line["step"] != step]


def twice(step):
    def change(lines):
        (line,) = (line for line in lines if line["step"] == step and "loss" in line)
        return [*lines, line]

    return change


def changed(step, **fields):
    return lambda lines: [{**line, **(fields if line["step"] == step else {})} for line in lines]


@pytest.mark.parametrize(
    ("change", "failed"),
    [
        (without(25), {"steps": "step 25 is missing"}),
        (without(1), {"steps": "step 1 is missing"}),
        (twice(17), {"steps": "step 17 is recorded again after step 40"}),
        (changed(12, samples=63), {"batches": "step 12 has 63 samples of epoch 1, not 64 of 1"}),
        (
            changed(11, epoch=0),
            {
                "batches": "step 11 has 64 samples of epoch 0, not 64 of 1",
                "samples": "epoch 0 used 64 samples more than once",
            },
        ),
        (
            changed(9, workers={"rank": [0, 1], "shards": [4, 3]}),
            {"shards": "step 9 has 7 shards, not 8"},
        ),
        (changed(40, loss=0.5), {"checkpoints": "the loss 0.05, and 0.5 is recorded"}),
        (
            changed(21, time_unix_s=1015.4),
            {"writers": "step 21 was recorded before generation 2 of start 1 began"},
        ),
    ],
)
def test_what_contradicts_the_record_is_named(run, change, failed):
    rewrite(run / "metrics.jsonl", change)
    found = texts(run, Answer.FAILED)
    assert found.keys() == failed.keys()
    assert all(text in found[name] for name, text in failed.items())


def test_many_problems_are_counted(run):
    rewrite(run / "metrics.jsonl", lambda lines: [line for line in lines if line["step"] % 5])
    assert "step 25 is missing; and 3 more" in texts(run, Answer.FAILED)["steps"]


def test_skipped_steps_are_counted(run):
    rewrite(run / "metrics.jsonl", changed(5, skipped=True))
    assert texts(run, Answer.OK)["skipped"].startswith("1 step skipped")


def test_checkpoints_of_other_data_are_found(run):
    saved(run, 30, seed=1)
    saved(run, 20, epochs=2, samples="other")  # extended since, on other hardware
    assert texts(run, Answer.FAILED) == {
        "checkpoints": "the checkpoint of step 30 has another seed"
    }


def test_without_a_checkpoint_the_order_is_not_known(run):
    shutil.rmtree(run / "checkpoints")
    found = texts(run, Answer.NOT_CHECKED)
    assert found.keys() == {"batches", "shards", "samples", "checkpoints"}


def test_a_damaged_checkpoint_is_named(run):
    (run / "checkpoints" / "step-00000040" / "manifest.json").write_bytes(b"{")
    assert "manifest.json is damaged" in texts(run, Answer.FAILED)["checkpoints"]


def test_a_record_that_was_cut_off_is_not_the_whole_run(run):
    rewrite(run / "metrics.jsonl", lambda lines: lines[:25])
    problem = texts(run, Answer.FAILED)["steps"]
    assert problem.endswith("to 40 are missing: the run has reached step 40")


def test_a_run_without_a_step_proves_nothing_and_says_why(run):
    shutil.rmtree(run / "checkpoints")
    rewrite(run / "events.jsonl", lambda lines: lines[:3])
    for change, found in [(Path.unlink, "is missing"), (Path.touch, "has no step")]:
        change(run / "metrics.jsonl")
        texts_of = texts(run, Answer.NOT_CHECKED)
        assert texts_of.keys() == {check.name for check in audit(run).checks} - {"events"}
        assert texts_of["steps"].startswith(f"metrics.jsonl {found}, and as far as events")
        assert "no step was committed: audit the run after its first step" in texts_of["steps"]
        assert texts_of["samples"] == texts_of["writers"] == "no step is recorded"


def test_steps_that_were_made_and_are_not_recorded_are_missing(run):
    (run / "metrics.jsonl").unlink()
    (problem,) = texts(run, Answer.FAILED).values()
    assert problem == (
        "metrics.jsonl is missing, and the run has reached step 40: copy the file from a backup"
    )
    shutil.rmtree(run / "checkpoints")
    assert "has reached step 20:" in texts(run, Answer.FAILED)["steps"]  # of its last generation


def test_events_that_cannot_be_read_are_named(run, command_line):
    path = run / "events.jsonl"
    begun = len(path.read_text().splitlines())
    with path.open("a") as file:
        file.write('{"event"')  # as a crash leaves it
    assert outcomes(run)["events"] is Answer.OK
    assert command_line("events", str(run))[2] == ""
    with path.open("a") as file:
        file.write("\n[1]\n")
    assert texts(run, Answer.NOT_CHECKED)["events"].endswith(f"leaves: {begun + 1}, {begun + 2}")
    for words in ([], ["--json"]):
        status, out, err = command_line("events", str(run), *words)
        assert (status, "generation" in out) == (0, True)
        assert err == f"holdfast: 2 lines of {path} cannot be read; holdfast audit names them\n"


def test_epochs_of_a_stream_are_compared_with_each_other(run):
    saved(run, num_samples=None, stream="own.Stream")
    assert outcomes(run)["samples"] is Answer.NOT_CHECKED
    assert outcomes(run)["batches"] is Answer.NOT_CHECKED
    rewrite(run / "metrics.jsonl", changed(20, samples=10))
    assert texts(run, Answer.FAILED) == {
        "samples": "the epochs have unlike numbers of samples: 640, 586, 640"
    }


@pytest.mark.parametrize("num_samples", [64, 100, 127, 129])
@pytest.mark.parametrize("drops_last", [False, True])
def test_an_epoch_uses_each_sample_once(num_samples, drops_last):
    order = SampleOrder(
        num_samples=num_samples,
        batch_size=32,
        num_shards=4,
        epochs=3,
        seed=1,
        fingerprint="x",
        drops_last=drops_last,
    )
    steps = range(2 * order.steps_per_epoch + 1)
    rows = [row_of(order, step) for step in steps]
    check = check_samples(rows, epochs_of(rows, order, is_over=False), order)
    assert check.outcome is Answer.OK
    assert "epoch 2, which is not complete, used none twice" in check.text
    twice = [*rows[:-1], replace(rows[-1], epoch=0)]
    failed = check_samples(twice, epochs_of(twice, order, is_over=False), order)
    assert failed.outcome is Answer.FAILED


def row_of(order, step):
    return StepRow(
        step=step + 1,
        epoch=order.epoch_of(step),
        samples=order.batch_size_of(step),
        loss=1.0,
        is_skipped=False,
        shards=4,
        at=None,
    )


def test_too_many_samples_are_not_checked():
    order = SampleOrder.of_facts({**ORDER, "num_samples": 1 << 40})
    rows = [row_of(order, 0)]
    check = check_samples(rows, epochs_of(rows, order, is_over=False), order)
    assert check.outcome is Answer.NOT_CHECKED


def test_the_samples_that_a_sampler_draws_are_not_checked():
    order = SampleOrder.of_facts({**ORDER, "sampler": "WeightedRandomSampler"})
    rows = [row_of(order, 0)]
    check = check_samples(rows, epochs_of(rows, order, is_over=False), order)
    assert check.outcome is Answer.NOT_CHECKED
    assert "a WeightedRandomSampler decides" in check.text
    known = SampleOrder.of_facts({**ORDER, "sampler": "shuffle=False"})
    assert check_samples(rows, epochs_of(rows, known, is_over=False), known).outcome is Answer.OK


def generation(number, at, step, last=0, from_checkpoint=True):
    fields = {"last_committed_step": last, "from_checkpoint": from_checkpoint}
    return recorded_run.generation(number, at, step) | fields


def event(name, at, **fields):
    return {"time_unix_s": at, "event": name, **fields}


LIVES = [
    event("run-started", 1.0, workers=2),
    generation(1, 2.0, 0),
    event("checkpoint-committed", 3.0, step=10),
    event("agent-exited", 4.0, status=-9, cause="was killed by SIGKILL"),
    generation(3, 5.0, 10),
    generation(3, 5.1, 10),  # of another host
    event("checkpoint-committed", 6.0, step=20),
    event("run-ended", 7.0, status="stopped", steps=25),
    event("run-started", 8.0, workers=3),
    generation(1, 9.0, 20),
    event("run-started", 11.0, workers=1),
    generation(1, 12.0, 20),
]


def test_lives_say_what_was_computed_again_and_what_is_not_known():
    (first, second, third) = lives_of(LIVES)
    assert [each.number for each in first.generations] == [1, 3]
    assert first.generations[1].causes == ("agent was killed by SIGKILL",)
    assert [each.recomputed for each in first.generations] == [0, None]
    assert [each.recomputed for each in second.generations] == [5]
    assert [each.recomputed for each in third.generations] == [None]  # the second was killed
    assert (first.ending, third.ending) == ("run stopped, 25 steps", "")


def test_the_steps_that_count_are_those_that_no_later_generation_replaced():
    found = segments_of(lives_of(LIVES), newest=33)
    assert [(each.first, each.last, each.life, each.generation) for each in found] == [
        (1, 10, 1, 1), (11, 20, 1, 3), (21, 33, 3, 1)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("more", "outcome", "text"),
    [
        (generation(3, 1018.0, 18, last=20, from_checkpoint=False), Answer.FAILED,
         "generation 3 of start 1 continued after step 18, and 20 steps were committed"),
        (generation(3, 1018.0, 30), Answer.NOT_CHECKED,
         "generation 3 of start 1 began after step 30, of which no checkpoint is recorded here"),
        (generation(3, 1018.0, 10), Answer.OK, "in 1 generation a number that"),
    ],
)  # fmt: skip
def test_a_generation_continues_from_a_step_that_was_there(run, more, outcome, text):
    rewrite(run / "events.jsonl", lambda lines: [*lines, more])
    assert text in texts(run, outcome)["lineage"]


def test_a_recovery_report_says_what_was_computed_again(run):
    rewrite(run / "events.jsonl", lambda lines: [*lines, generation(3, 1018.0, 10)])
    report = recorded_run.RECOVERY | {"time_unix_s": 1019.0, "recomputed_steps": 7}
    rewrite(run / "recoveries.jsonl", lambda lines: [*lines, report, {"of": "another version"}])
    assert [each.recomputed for each in audit(run).lives[0].generations] == [0, 0, 7]


def test_clocks_of_several_hosts_do_not_tell_who_wrote_a_step(run):
    hosts = [event("worker-started", 1000.0, rank=0, pid=1, host=name) for name in ("a", "b")]
    rewrite(run / "events.jsonl", lambda lines: [*lines, *hosts])
    assert outcomes(run)["writers"] is Answer.NOT_CHECKED


def test_the_command_fails_if_a_check_does(run, command_line):
    status, out, err = command_line("audit", str(run))
    assert (status, err) == (0, "")
    assert "    because rank 1 was killed by SIGKILL\n" in out
    assert "  21 to 40: start 1, generation 2, 2 workers\n" in out
    assert out.count("  ok   ") == 9
    rewrite(run / "metrics.jsonl", without(25))
    status, out, _ = command_line("audit", str(run), "--json")
    found = json.loads(out)
    assert (status, found["failed"], found["steps"]) == (1, True, 40)
    assert found["checks"][0]["outcome"] == "failed"
