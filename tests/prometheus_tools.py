"""Where Prometheus and its tool are, as Debian has them."""

import shutil

import pytest

needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None or shutil.which("promtool") is None,
    reason="needs Prometheus: apt-get install prometheus",
)
