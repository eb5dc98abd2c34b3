"""Profile files: what is accepted, and what is said of the rest."""

import json

import pytest

from holdfast.errors import JobError
from holdfast.hardware import profile_file
from holdfast.hardware.profile import Device, HostProfile


def parsed(hosts, **more):
    return profile_file.parse(json.dumps({"hosts": hosts, **more}).encode(), "file")


def test_a_host_has_its_own_entry_or_that_of_all_others():
    one, any_host = ({"devices": [{"name": name, "score": 1}]} for name in ("one", "any"))
    several = parsed({"one": one, "*": any_host})
    assert [several.of(name).devices[0].name for name in ("one", "two")] == ["one", "any"]
    assert parsed({"one": one}).of("two").devices[0].name == "one"
    assert parsed({"one": one, "two": one}).of("three") is None


def test_a_run_gets_hosts_without_links():
    one = {"devices": [{"name": "one", "score": 1}]}
    link = {"source": "a", "target": "b", "latency_s": 1e-4, "bytes_per_s": 1e9}
    given = parsed({"a": one, "b": one}, links=[link])
    kept = profile_file.parse(given.for_run().encode(), "file")
    assert (kept.hosts, kept.links) == (given.hosts, ())


def test_workers_use_the_devices_that_the_job_names():
    gpu = Device(name="gpu", score=9.0, tflops={"bf16": 30.0})
    cpu = Device(name="cpu", score=0.2, kind="cpu")
    host = HostProfile(devices=(gpu, cpu))
    assert [host.used_by(each) for each in ("auto", "cuda", "cpu")] == [(gpu,), (gpu,), (cpu,)]
    assert HostProfile(devices=(cpu,)).used_by("auto") == (cpu,)
    assert HostProfile(devices=(gpu,)).used_by("cpu") == (gpu,), "a stand-in for unlike cards"
    assert [gpu.score_in(each) for each in ("fp32", "bf16", "fp16")] == [9.0, 30.0, 9.0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[]", "all of it: input should be an object"),
        ("{", "file: no JSON: EOF"),
        ("{}", "hosts is missing"),
        ('{"hosts": {}}', "hosts is empty; give at least one, such as"),
        ('{"hosts": {"a": {"devices": []}}}', "hosts.a.devices is empty"),
        ('{"hosts": {"a": {"devices": [{"name": "x"}]}}}', "hosts.a.devices.0.score is missing"),
        (
            '{"hosts": {"a": {"devices": [{"name": "x", "score": -1}]}}}',
            "hosts.a.devices.0.score: input should be greater than or equal to 0, not -1",
        ),
        (
            '{"hosts": {"a": {"devices": [{"name": "x", "score": NaN}]}}}',
            "hosts.a.devices.0.score: input should be a finite number, not nan",
        ),
        (
            '{"hosts": {"a": {"devices": [{"name": "x", "score": 1, "speed": 2}]}}}',
            "unknown key hosts.a.devices.0.speed; remove it",
        ),
        ('{"hosts": {}, "host": 1}', "unknown key host; remove it"),
    ],
)
def test_mistakes_are_named(text, words):
    with pytest.raises(JobError) as raised:
        profile_file.parse(text.encode(), "file")
    assert words in str(raised.value)


def test_a_file_that_is_not_there_is_one_line(tmp_path):
    with pytest.raises(JobError, match=r"none\.json: No such file or directory; name"):
        profile_file.read(tmp_path / "none.json")
