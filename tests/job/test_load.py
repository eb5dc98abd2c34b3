"""Jobs: what is right is taken, what is wrong is named."""

import pytest

from holdfast.errors import JobError
from holdfast.job.load import builtin_names, dump, load


@pytest.mark.parametrize("name", builtin_names())
def test_a_built_in_job_is_read_back_from_what_a_run_writes_down(name, tmp_path):
    job = load(name)
    path = tmp_path / "job.yaml"
    path.write_text(dump(job))
    assert load(str(path)) == job


def test_overrides_reach_into_the_job():
    job = load("digits", ["workers=3", "optimizer.lr=0.5", "shares=[4, 2, 2]"])
    assert (job.workers, job.optimizer.lr, job.shares) == (3, 0.5, (4, 2, 2))
    assert job.name == "digits"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("worker=2", "unknown key worker; did you mean workers?"),
        ("optimizer.learning_rat=2", "unknown key optimizer.learning_rat; "),
        ("optimizer.weight_decy=2", "did you mean weight_decay?"),
        ("workers=two", "workers: input should be a valid integer"),
        ("workers=0", "workers: input should be greater than or equal to 1, not 0"),
        ("numerics=exactly", "numerics: input should be 'exact' or 'fast', not 'exactly'"),
        ("model.name=transformer", "model: "),
        ("workers", "'workers' is not key=value"),
        ("workers.x=1", "workers has no keys of its own"),
        ("clip_norm=.inf", "clip_norm: input should be a finite number"),
        ("data=[", "is not YAML"),
    ],
)
def test_a_wrong_override_is_refused_by_name(override, message):
    with pytest.raises(JobError) as caught:
        load("digits", [override])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unknown_job_is_refused_with_the_nearest():
    with pytest.raises(JobError, match=r"no job 'digit': .*did you mean digits\?"):
        load("digit")


@pytest.mark.parametrize("text", ["- 1\n", "5", "a: [", ""])
def test_a_file_that_is_no_job_is_refused(tmp_path, text):
    path = tmp_path / "job.yaml"
    path.write_text(text)
    with pytest.raises(JobError, match=r"job\.yaml"):
        load(str(path))


def test_only_what_does_not_show_in_the_weights_may_change_on_resume():
    base = load("digits").lineage()
    for free in ("workers=4", "placement=arena", "loader.prefetch=0", "checkpoint.keep=9"):
        assert load("digits", [free]).lineage() == base
    for fixed in ("seed=1", "batch=32", "shards=4", "epochs=2", "threads_per_worker=2"):
        assert load("digits", [fixed]).lineage() != base
    folder = ["data={name: image-folder, path: a}"]
    assert load("digits", [*folder, "data.cache=b"]).lineage() == load("digits", folder).lineage()
    assert load("digits", [*folder, "data.height=9"]).lineage() != load("digits", folder).lineage()
    fast = load("digits", ["numerics=fast"])
    assert load("digits", ["numerics=fast", "workers=1"]).lineage() != fast.lineage()
