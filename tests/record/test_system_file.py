"""What hosts use is kept, a line a sample, in files that are bounded."""

import json
from dataclasses import replace

import pytest

from holdfast.hardware.system_sample import ADAPTER
from holdfast.rundir import system_file
from holdfast.rundir.follow import JsonTail
from holdfast.rundir.system_file import SystemFile, samples_in
from system_samples import SAMPLE


@pytest.fixture
def path(tmp_path):
    return tmp_path / "system.jsonl"


def test_the_newest_sample_of_each_host_is_read_back(tmp_path, path):
    other = replace(SAMPLE, host="h2")
    SystemFile(tmp_path).add([SAMPLE, other])
    with path.open("a") as file:
        file.write('{"host": "h1", "of": "another version"}\n{"torn')
    newer = replace(SAMPLE, time_unix_s=1002.5)
    SystemFile(tmp_path).add([newer])
    assert SystemFile(tmp_path).newest() == {"h1": newer, "h2": other}
    assert json.loads(path.read_text().splitlines()[0])["gpus"][0]["temperature_c"] == 61.0


def test_a_file_that_is_not_there_holds_nothing(tmp_path):
    assert SystemFile(tmp_path).newest() == {}
    SystemFile(tmp_path / "absent").add([SAMPLE])


def test_there_are_two_files_at_most_and_a_reader_follows(tmp_path, path, monkeypatch):
    monkeypatch.setattr(system_file, "MAX_BYTES", 2000)
    read, times = JsonTail(path), []
    for number in range(41):
        SystemFile(tmp_path).add([replace(SAMPLE, time_unix_s=float(number))])
        times += [line["time_unix_s"] for line in read()]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["system.jsonl", "system.jsonl.1"]
    assert all(each.stat().st_size < 3000 for each in tmp_path.iterdir())
    assert times == sorted(times), "no line is read twice"
    assert len(times) > 25, "only the last line of a file may be missed"


def test_what_a_host_sends_of_others_or_that_is_no_sample_is_left_out():
    def line(sample):
        return ADAPTER.dump_json(sample) + b"\n"

    bad = [b"no json\n", b"[]\n", b'{"host": "h1"}\n', line(replace(SAMPLE, host="h2"))]
    assert samples_in(b"".join([*bad, line(SAMPLE)]), "h1") == [SAMPLE]
