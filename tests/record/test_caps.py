"""The caps of workers that ran out of memory, from the events of a run."""

from holdfast.record.breakdown import caps

LACKS = {"event": "worker-out-of-memory", "rank": 1, "host": "a", "cap": 3}
STARTS = {"event": "worker-started", "rank": 1, "host": "a"}


def test_the_newest_cap_of_a_rank_counts():
    assert caps([STARTS, LACKS, STARTS, LACKS | {"cap": 2}, STARTS]) == {1: 2}


def test_a_cap_ends_with_the_attempt_or_when_its_rank_is_on_another_host():
    assert caps([LACKS, {"event": "run-started"}, STARTS]) == {}
    assert caps([LACKS, STARTS | {"host": "b"}]) == {}
