"""Workers in tables have the GPUs that they compute on."""

import json

from holdfast.record.run_record import RunRecord
from holdfast.record.views.run_at import RunAt
from holdfast.record.views.worker_rows import workers_of

HOSTS = {"a": (0, 1, 2), "b": (3, 4)}


def test_workers_of_each_host_begin_with_its_first_gpu(tmp_path):
    events = [
        {"time_unix_s": 1.0, "event": "worker-started", "rank": rank, "pid": 7} for rank in range(5)
    ]
    samples = [
        {
            "host": host,
            "time_unix_s": 2.0,
            "gpus": [{"index": number, "name": f"{host}{number}"} for number in range(2)],
            "workers": [{"rank": rank} for rank in ranks],
        }
        for host, ranks in HOSTS.items()
    ]
    for name, lines in (("events.jsonl", events), ("system.jsonl", samples)):
        (tmp_path / name).write_text("".join(json.dumps(each) + "\n" for each in lines))
    run = RunAt(record=RunRecord(tmp_path), now=3.0)
    assert [each.device for each in workers_of(run)] == ["a0", "a1", "a0", "b0", "b1"]
