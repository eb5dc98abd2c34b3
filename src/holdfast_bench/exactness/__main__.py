"""`python -m holdfast_bench.exactness --seeds N [--first S]`, or `--job FILE` for one case."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from holdfast.errors import JobError
from holdfast_bench.exactness.case import Case, load
from holdfast_bench.exactness.draw import draw
from holdfast_bench.exactness.fuzz import details, examine, line, shrunk, specification
from holdfast_bench.exactness.runner import Runner


def main() -> int:
    """Examine what is asked for, print a line for each seed; returns 1 if anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=_count, default=20, help="Number of seeds (default 20).")
    parser.add_argument("--first", type=_count, default=0, help="The first seed.")
    parser.add_argument("--job", type=Path, help="Run the case in this file instead.")
    options = parser.parse_args()
    try:
        cases = _cases(options.job, range(options.first, options.first + options.seeds))
    except JobError as error:
        parser.error(str(error))
    findings = 0
    with Runner() as runner:
        for name, case in cases:
            report = examine(case, runner)
            print(line(name, report), flush=True)
            if report.found:
                findings += 1
                print(details(report), flush=True)
                if options.job is None and not report.hung:  # shrinking would take hours
                    least = shrunk(report, runner)
                    print(f"shrunk to:\n{details(least)}\n{specification(least)}", flush=True)
    return 1 if findings else 0


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 on")
    return int(text)


def _cases(job: Path | None, seeds: range) -> Iterator[tuple[str, Case]]:
    if job is not None:
        return iter([(job.name, load(job))])
    return ((f"seed {seed}", draw(seed)) for seed in seeds)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
