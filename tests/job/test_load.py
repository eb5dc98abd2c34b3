"""Loading jobs: valid jobs are loaded, and mistakes are named."""

import tempfile

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import JobError
from holdfast.job.load import builtin_names, check, check_script, dump, load, of_run
from holdfast.job.load import request as load_request


@pytest.mark.parametrize("name", builtin_names())
def test_a_built_in_job_is_read_back_from_what_a_run_writes_down(name, tmp_path):
    job = load(name)
    path = tmp_path / "job.yaml"
    path.write_text(dump(job))
    assert load(str(path)) == job


def test_the_name_of_a_function_is_a_job():
    job = load("tasks/wine.py:main", ["workers=3"])
    assert (job.task, job.name, job.workers) == ("tasks/wine.py:main", "main", 3)


def test_overrides_reach_into_the_job():
    job = load("digits", ["workers=3", "optimizer.lr=0.5", "shards_per_worker=[4, 2, 2]"])
    assert (job.workers, job.optimizer.lr, job.shards_per_worker) == (3, 0.5, (4, 2, 2))
    assert job.name == "digits"


@pytest.mark.parametrize(
    ("memory", "keys", "on_gpu", "keeps"),
    [
        ("auto", ["workers=1"], True, True),
        ("auto", ["workers=2"], True, False),
        ("auto", ["workers=1"], False, False),
        ("auto", ["workers=2", "parallel.zero=3"], False, True),
        ("always", ["workers=2"], False, True),
        ("never", ["workers=1"], True, False),
    ],
)
def test_runs_whose_memory_is_lost_with_a_worker_keep_snapshots(memory, keys, on_gpu, keeps):
    job = load("digits", [f"checkpoint.memory={memory}", *keys]).resolved()
    assert job.keeps_snapshots(on_gpu=on_gpu) == keeps
    assert load("digits").checkpoint.memory == "auto"


@pytest.mark.parametrize("value", [float("inf"), float("nan"), {1, 2}, b"x", print, "\udcff"])
def test_params_that_cannot_be_sent_to_a_worker_are_refused(value):
    with pytest.raises(JobError, match=r"params: .*may contain finite numbers, strings"):
        check({"name": "own", "task": "own.py:main", "params": {"x": [value]}}, where="test")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("epochs=10000000000", "epochs: input should be less than or equal to 1000000000, not"),
        ("threads_per_worker=100000", "threads_per_worker: input should be less than or equal to"),
        ("worker=2", "unknown key worker; did you mean workers? (from worker=2)"),
        ("gpus_per_worker=2", "unknown key gpus_per_worker; a worker computes on one GPU: set wor"),
        ("nproc_per_node=2", "unknown key nproc_per_node; set workers to the number on all hosts"),
        ("optimizer.learning_rat=2", "unknown key optimizer.learning_rat; remove it"),
        ("optimizer.weight_decy=2", "did you mean weight_decay?"),
        ("workers=two", "workers: input should be a valid integer or auto, not 'two' (from worker"),
        ("workers=0", "workers: input should be greater than or equal to 1, not 0"),
        (
            "numerics=exactly",
            "numerics: input should be 'exact', 'portable', 'mixed' or 'fast', not 'exactly'",
        ),
        ("verify.recompute=1e-9", "verify.recompute: must be 0, or at least 0.000001"),
        (
            "ddp.static_graph=true",
            "ddp: these keys are DistributedDataParallel's; set sync=ddp, or remove them",
        ),
        (
            "compression={method: topk, rank: 2}",
            "compression: rank needs method=powersgd; set it, or remove rank (from compression={",
        ),
        ("compression.share=0", "compression.share: input should be greater than 0, not 0"),
        ("model.name=vit", "model.name: input should be 'mlp', 'cnn', 'resnet18', 'resnet50', "),
        ("data={}", "data.name: input should be 'digits', 'synthetic-images', "),
        ("data=digits", "values, not 'digits'; did you mean data.name=digits? (from"),
        (
            "shards_per_worker=[1, x]",
            "shards_per_worker.1: input should be a valid integer, not 'x'",
        ),
        ("model.name=mlp", "to replace the whole part write 'model={name: mlp}'"),
        ("workers", "'workers' is not key=value"),
        ("workers.x=1", "workers is a single value in this job"),
        ("clip_norm=.inf", "clip_norm=.inf cannot be read: "),
        ("params={1: a}", "a key that is not a string"),
        ("data=[", "data=[ cannot be read: "),
        ("shards=some", "shards: input should be a valid integer or auto, not 'some'"),
        (
            "loader.pin_memory=maybe",
            "loader.pin_memory: input should be a valid boolean or auto, not 'maybe' (from",
        ),
        (
            "checkpoint.memory=off",
            "memory: input should be 'auto', 'always' or 'never', not False (YAML reads off and no",
        ),
        ("shards=0", "shards: input should be greater than or equal to 1, not 0"),
    ],
)
def test_a_wrong_override_is_refused_by_name(override, message):
    with pytest.raises(JobError) as caught:
        load("digits", [override])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# mine\nbatch: many\n", ", line 2: batch: input should be a valid integer, not 'many'"),
        ("model:\n  name: cnn\n  widht: 3\n", ", line 3: unknown key model.widht; did you mean wi"),
        (
            "model: {name: mlp, mlp: 1}\nx: 1",
            ", line 1: unknown key model.mlp; remove it; line 2: ",
        ),
        (
            "optimizer: {name: adamw, momentun: 1}",
            ", line 1: unknown key optimizer.momentun; remove it",
        ),
        (
            "shards_per_worker:\n  - 1\n  - x\n",
            ", line 3: shards_per_worker.1: input should be a valid integer, not 'x'",
        ),
        (
            "data: {name: hdf5, path: a, labels: b, classes: 2, features: 3}",
            ", line 1: data.features: should be a name or a list of names, not 3",
        ),
        ("seed: 1\nbatch: 8\nseed: 2\n", ", line 3 cannot be read: 'seed' is given twice"),
        ("seed: 1\nbatch: [8\n", ", line 3 cannot be read: expected ',' or ']'"),
        ("params: {day: 2026-13-45}", " cannot be read: month must be in 1..12"),
        ("params: {day: 2026-01-02}", " cannot be read: Object of type date "),
        ("params: &loop {again: *loop}", " cannot be read: Circular reference"),
        ("[" * 5000, " cannot be read: maximum recursion depth exceeded"),
    ],
)
def test_a_mistake_in_a_file_is_named_with_its_line(tmp_path, text, message):
    path = tmp_path / "job.yaml"
    path.write_text(text)
    with pytest.raises(JobError) as caught:
        load(str(path))
    assert f"{path}{message}" in str(caught.value).removeprefix("job ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", ["nonsense://user:secret@x", "[A, 'json://secret@x']", "[3]"])
def test_an_address_in_place_of_its_variable_is_not_repeated(tmp_path, value):
    path = tmp_path / "job.yaml"
    path.write_text(f"notify: {value}\n")
    for words in ([str(path)], ["digits", [f"notify={value}"]]):
        with pytest.raises(
            JobError, match="notify: input should be a list of environment"
        ) as caught:
            load(*words)
        assert "secret" not in str(caught.value)
    assert load("digits", ["notify=[HOOK, MAIL]"]).notify == ("HOOK", "MAIL")


def test_mistakes_of_overrides_and_of_the_file_are_told_apart(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text("name: fine\nbatch: many\nworkers: 2\n")
    with pytest.raises(JobError) as caught:
        load(str(path), ["workers=0", "seed=1"])
    assert str(caught.value) == (
        f"job {path}, line 2: batch: input should be a valid integer, not 'many'; "
        "workers: input should be greater than or equal to 1, not 0 (from workers=0)"
    )


@settings(max_examples=50, deadline=None)
@given(st.one_of(st.text(), st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(
            ["model", "data", "name", "mlp", "digits", "batch", "x\n", "shards_per_worker"]
        ), inner
    ),
).map(yaml.safe_dump)))  # fmt: skip
def test_any_text_is_a_job_or_refused_in_one_line(text):
    with tempfile.NamedTemporaryFile("w", suffix=".yaml", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        try:
            answer = load(file.name).name
        except JobError as error:
            answer = str(error)
    assert len(answer.splitlines()) == 1


def test_an_unknown_job_is_refused_with_the_nearest_name():
    with pytest.raises(JobError, match=r"no job 'digit': .*did you mean digits\?"):
        load("digit")


def test_a_python_file_without_a_function_is_a_program():
    job = load("path/train.py")
    assert (job.name, job.task) == ("train", "path/train.py:__main__")


@pytest.mark.parametrize("text", ["- 1\n", "5", "a: [", ""])
def test_a_file_that_is_not_a_job_is_refused(tmp_path, text):
    path = tmp_path / "job.yaml"
    path.write_text(text)
    with pytest.raises(JobError, match=r"job\.yaml"):
        load(str(path))


def weights_config(*overrides):
    return load("digits", overrides).resolved().weights_config()


def test_only_keys_that_do_not_change_the_weights_may_change_on_resume():
    base = weights_config()
    for free in ("workers=4", "max_workers=8", "loader.prefetch=0", "checkpoint.keep=9"):
        assert weights_config(free) == base
    for fixed in ("seed=1", "batch=32", "shards=4", "epochs=2", "threads_per_worker=2"):
        assert weights_config(fixed) != base
    folder = "data={name: image-folder, path: a}"
    assert weights_config(folder, "data.cache=b") == weights_config(folder)
    assert weights_config(folder, "data.height=9") != weights_config(folder)
    assert weights_config("numerics=fast", "workers=1") != weights_config("numerics=fast")


@pytest.mark.parametrize(
    ("keys", "shards"),
    [
        ({"workers": 3}, 3),
        ({"workers": 2, "max_workers": 6}, 6),
        ({"workers": 2, "shards_per_worker": [5, 3]}, 8),
        ({"workers": 2, "shards": 5, "threads_per_worker": 2}, 5),
    ],
)
def test_shards_follow_from_the_workers_of_the_first_start(keys, shards):
    request = load_request(keys, where="test")
    job = request.resolved()
    assert job.shards == shards
    assert load_request({"shards": "auto", **keys}, where="test") == request
    later = load_request({**keys, "workers": "auto"}, where="test")
    assert later.resolved(job) == job
    fewer = load_request({**keys, "workers": 1, "shards_per_worker": None}, where="test")
    assert fewer.resolved(job).shards == shards


@pytest.mark.parametrize(
    ("keys", "begun", "message"),
    [
        ({"workers": 3}, {"workers": 2}, "workers=3 is more than shards=2, which the run keeps"),
        ({"workers": 3, "max_workers": 2}, None, "max_workers=2 must be at least workers=3"),
        ({"shards": 4, "max_workers": 5}, None, "max_workers=5 must be .* at most shards=4"),
        ({"max_workers": 5}, {"workers": 2}, "max_workers=5 must be .* at most shards=2"),
    ],
)
def test_workers_without_shards_are_refused(keys, begun, message):
    run = load_request(begun, where="test").resolved() if begun else None
    with pytest.raises(JobError, match=message):
        load_request(keys, where="test").resolved(run)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"balance": "hybrid", "shards_per_worker": [1]}, "shards_per_worker; set one of them"),
        ({"exchange": "arena", "sync": "ddp"}, "exchange=arena .* sync=ddp; set sync=tree"),
        ({"exchange": "alone", "non_finite": "recompute"}, "set non_finite=stop or skip"),
        ({"exchange": "alone", "workers": "auto"}, "workers=auto; set exchange=auto"),
        ({"exchange": "nccl", "network": "trusted"}, "nccl .* hosts=1; set exchange=auto"),
        ({"exchange": "nccl", "hosts": 2}, "nccl .* network=tls; set network=trusted"),
        ({"hosts": 2, "non_finite": "recompute"}, "hosts=2 .* non_finite=recompute; set"),
        ({"hosts": 2, "verify": {"recompute": 0.5}}, "verify.recompute; set verify.recompute=0"),
        ({"hosts": 2, "workers": "auto"}, "hosts=2 .* workers=auto; set a number of workers"),
        ({"hosts": 2}, "workers=1 leaves some of hosts=2 without a worker"),
    ],
)
def test_keys_that_exclude_each_other_are_refused(keys, message):
    with pytest.raises(JobError, match=message):
        load_request(keys, where="test").check()


def test_values_shared_by_a_yaml_anchor_are_separate_in_the_job(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("params:\n  a: &p {lr: 1}\n  b: *p\n")
    assert load(str(path), ["params.a.lr=2"]).params == {"a": {"lr": 2}, "b": {"lr": 1}}


def test_values_from_python_are_not_parsed():
    job = load("digits", values={"params": {"lr": 1e-5}, "optimizer.lr": 0.5})
    assert job.params == {"lr": 1e-5}
    assert job.optimizer.lr == 0.5


def test_mistakes_are_listed_by_line_with_those_of_overrides_last(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text("seed: x\nworkers: 0\n")
    with pytest.raises(JobError, match=r"line 1: seed: .*; line 2: workers: .*; batch: .*batch=y"):
        load(str(path), ["batch=y"])


def test_the_job_of_a_run_directory_is_loaded_as_either_kind(tmp_path):
    script = check_script({"name": "own", "script": {"path": "a.py"}, "workers": 2}, where="test")
    for job in (script, load("digits", ["workers=2"]).resolved()):
        (tmp_path / "job.yaml").write_text(dump(job))
        assert of_run(tmp_path) == job


def test_a_script_is_refused_where_a_training_job_is_expected(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text("script: {path: a.py}\n")
    with pytest.raises(JobError, match="use holdfast run to run a script"):
        load(str(path))


def test_a_script_has_none_of_the_keys_of_training():
    with pytest.raises(JobError, match="unknown key optimizer; remove it"):
        check_script({"script": {"path": "a.py"}, "optimizer": {"name": "adamw"}}, where="test")
    with pytest.raises(JobError, match=r"unknown key worker; did you mean workers\?"):
        check_script({"script": {"path": "a.py"}, "worker": 2}, where="test")
    with pytest.raises(JobError, match=r"unknown key gpus_per_worker; set resources.gpus"):
        check_script({"script": {"path": "a.py"}, "gpus_per_worker": 2}, where="test")


def test_keys_of_a_script_are_overridden_like_those_of_a_training_job():
    values = {"script": {"path": "a.py"}, "workers": 2}
    job = check_script(values, "test", ["resources.gpus=1", "trackers=[tensorboard]"])
    assert (job.workers, job.resources.gpus, job.trackers[0].name) == (2, 1, "tensorboard")
    with pytest.raises(JobError, match=r"timeout_s: .* \(from timeout_s=soon\)"):
        check_script(values, "test", ["timeout_s=soon"])


def test_gpus_that_a_worker_would_not_use_are_refused():
    several = "resources.gpus=4"
    message = r"a worker computes on one; set resources.gpus=1, workers=8$"
    with pytest.raises(JobError, match=message):
        load("digits", ["workers=2", several]).check()
    with pytest.raises(JobError, match=r"; set resources.gpus=1$"):
        load("digits", ["workers=auto", several]).check()
    script = {"script": {"path": "a.py"}, "resources": {"gpus": 4}}
    assert check_script(script, where="test").resources.gpus == 4
