"""Has a coordinator or an agent die where a test wants it to, once.

Python imports a module of this name before anything else, if it finds one. The fork server of the
tests has this directory on its path, and arms its forks; a test that has processes executed puts it
on their path. The fault is named in the environment: `who` is coordinator or agent; `at` and `when`
are as in `faults.wrap`; `which` is the number of the call, or what is to be found in its arguments;
`mark` names a file that says that it has happened.
"""

import itertools
import json
import os
import signal
import sys
from pathlib import Path

CONTROL = "holdfast.launch.control"


def arm(module):
    """Arm the fault that the environment names, if it is for the process of this module."""
    fault = json.loads(os.environ.get("HOLDFAST_FAULT", "null"))
    if fault and module == f"holdfast.{fault.pop('who')}.main":
        inject(**fault)


def inject(at, when, which, mark):
    import faults

    numbers = itertools.count(1)

    def die(arguments):
        due = which in repr(arguments) if isinstance(which, str) else which == next(numbers)
        if due and faults.is_first(mark):
            os.kill(os.getpid(), signal.SIGKILL)

    faults.wrap(at, when, die)


if "holdfast.launch.fork_server" in sys.orig_argv:
    sys.path.append(str(Path(__file__).parent.parent))
    import faults

    faults.wrap(f"{CONTROL}:run", "before", lambda arguments: arm(arguments[0]))
elif CONTROL in sys.orig_argv:
    arm(sys.orig_argv[sys.orig_argv.index(CONTROL) + 1])
