"""Run one benchmark in this process: `python -m holdfast_bench.run NAME [options]`.

An error of holdfast, such as a wrong job, is printed as a sentence. Measured processes use cached
bytecode, as they do where holdfast is installed from a wheel.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.util import find_spec

from holdfast.errors import HoldfastError


def main() -> int:
    """Run the benchmark that the first argument names; returns the exit status."""
    name = sys.argv.pop(1)
    sys.argv[0] = f"holdfast bench {name}"
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    place = f"holdfast_bench.{name}"
    spec = find_spec(place)
    is_package = spec is not None and spec.submodule_search_locations is not None
    module = import_module(f"{place}.__main__" if is_package else place)
    try:
        module.main()
    except HoldfastError as error:
        print(f"bench {name}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
