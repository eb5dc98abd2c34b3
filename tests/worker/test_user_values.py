"""What `session.state` may hold, and what it may not."""

import math

import pytest

from holdfast.errors import JobError
from holdfast.worker.user_state.user_values import check_plain


def nested(depth):
    found = []
    for _ in range(depth):
        found = [found]
    return found


@pytest.mark.parametrize(
    "value", [None, 1.5, math.inf, "é\0😀", [1, {"a": []}], 2**200, nested(100)]
)
def test_plain_values_may_be_kept(value):
    check_plain({"key": value})


@pytest.mark.parametrize(
    "value", [(1, 2), {1: 2}, print, "\udcff", [10**5000], nested(250), nested(990)]
)
def test_what_would_not_come_back_is_refused(value):
    with pytest.raises(JobError, match="must hold plain JSON values"):
        check_plain({"key": value})
