"""What user code keeps comes back from JSON as it was, or is refused by name."""

import copy
import json
import math
from collections import Counter, OrderedDict, defaultdict, namedtuple

import numpy as np
import pytest
import torch

from holdfast.arena.json_values import decode, encode, in_place
from holdfast.errors import JobError

Point = namedtuple("Point", "x y")


def again(value):
    return decode(json.loads(json.dumps(encode(value, "value"))))


@pytest.mark.parametrize(
    "value",
    [
        None, True, 3, 2.5, -0.0, math.inf, "text", [1, [2]], (1, (2, "x")), {"a": {"b": (1,)}},
        {1: "int", (1, 2): "tuple", "$x": "dollar"}, Counter({3: 2}), OrderedDict(a=1), [],
    ],
)  # fmt: skip
def test_values_come_back(value):
    assert repr(again(value)) == repr(dict(value) if type(value) is OrderedDict else value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (2, 3)])
def test_tensors_come_back(dtype, shape):
    tensor = torch.ones(shape, dtype=dtype)
    found = again({"tensor": tensor})["tensor"]
    assert found.dtype == dtype
    assert torch.equal(found, tensor)


def test_numbers_of_numpy_become_those_of_python():
    assert again([np.float64(0.5), np.int32(3)]) == [0.5, 3]


@pytest.mark.parametrize(
    "value",
    [
        np.ones(1), np.ones(3), Point(1, 2), defaultdict(list), torch.ones(2).to_sparse(), print,
        {1, 2}, b"bytes",
    ],
)  # fmt: skip
def test_what_would_come_back_as_something_else_is_refused_by_name(value):
    with pytest.raises(JobError, match=r"^value\.part is a .* which can be neither saved nor"):
        encode({"part": value}, "value")


def test_a_value_is_updated_within_the_lists_and_dictionaries_that_code_may_hold():
    inner, deep = [1], {"x": 1}
    old = {"list": inner, "deep": [deep], "number": 1, "changed": [1], "gone": 2}
    new = {"list": [1, 2], "deep": [{"y": [3]}, 4], "number": 2.5, "changed": {"a": 1}}
    assert in_place(old, copy.deepcopy(new)) is old
    assert old == new
    assert old["list"] is inner
    assert old["deep"][0] is deep


@pytest.mark.parametrize(
    "new", [{"a": [1], "b": [2]}, {"a": [1], "b": [1]}, {"a": [True], "b": [1]}]
)
def test_one_list_at_two_places_does_not_mix_their_values(new):
    shared = [0]
    updated = in_place({"a": shared, "b": shared}, copy.deepcopy(new))
    assert repr(updated) == repr(new)
    assert updated["a"] is shared
    assert (updated["b"] is shared) == (repr(new["a"]) == repr(new["b"]))
