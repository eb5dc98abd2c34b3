"""Run one benchmark in this process: `python -m holdfast_bench.run NAME [options]`.

The module of a benchmark has `add_options(parser)` and `run(options)`, which returns `Measured`.
This prints it as one JSON object. An error, such as a wrong job, is printed as a sentence. Measured
processes use cached bytecode, as they do where holdfast is installed from a wheel.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import asdict
from importlib import import_module
from typing import NoReturn

from holdfast.errors import HoldfastError
from holdfast.linux.lifeline import die_with_parent
from holdfast_bench.arguments import parser_of


def main() -> int:
    """Run the benchmark that the first argument names; returns the exit status."""
    name = sys.argv.pop(1)
    sys.argv[0] = f"holdfast bench {name}"
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    # The processes that a benchmark has started end with it, however it ends.
    signal.signal(signal.SIGTERM, _end)
    die_with_parent(os.getppid(), by=signal.SIGTERM)
    module = import_module(f"holdfast_bench.{name}")
    if hasattr(module, "__path__"):
        module = import_module(f"holdfast_bench.{name}.benchmark")
    parser = parser_of(module.__doc__)
    module.add_options(parser)
    options = parser.parse_args()
    try:
        measured = module.run(options)
    except (HoldfastError, OSError) as error:
        print(f"bench {name}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    print(json.dumps(asdict(measured)))
    return 0


def _end(number: int, *_: object) -> NoReturn:
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
