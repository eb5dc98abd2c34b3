"""Digits: scikit-learn's handwritten digits, which need no download."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np

from holdfast.data.images import Images, Samples, Splits
from holdfast.data.permutation import Permutation


def digits(*, augment: bool) -> Splits:
    """1,437 training and 360 test images, values in 0..1."""
    # Read as a file: importing scikit-learn takes a second.
    package = find_spec("sklearn")
    assert package is not None
    assert package.submodule_search_locations is not None
    path = Path(package.submodule_search_locations[0], "datasets", "data", "digits.csv.gz")
    table = np.loadtxt(path, delimiter=",", dtype=np.int64)
    x = table[:, :-1].reshape(-1, 1, 8, 8).astype(np.float32) / 16
    y = table[:, -1]
    order = Permutation(len(y), b"digits: training and test").take(0, len(y))
    train = order[360:]
    test = order[:360]
    return Splits(
        training=Images(Samples.of(x[train], y[train]), shift=int(augment)),
        test=Images(Samples.of(x[test], y[test])),
        shape=(1, 8, 8),
        classes=10,
    )
