"""Has a coordinator or an agent die where a test wants it to, once.

Python imports a module of this name before anything else, if it finds one. The test puts this
directory on the path, and names the fault in the environment: `who` is coordinator or agent; `at`
and `when` are as in `faults.wrap`; `which` is the number of the call, or what is to be found in its
arguments; `mark` names a file that says that it has happened.
"""

import itertools
import json
import os
import signal
import sys

import faults


def arm(at, when, which, mark):
    numbers = itertools.count(1)

    def inject(arguments):
        due = which in repr(arguments) if isinstance(which, str) else which == next(numbers)
        if due and faults.is_first(mark):
            os.kill(os.getpid(), signal.SIGKILL)

    faults.wrap(at, when, inject)


fault = json.loads(os.environ["HOLDFAST_FAULT"])
if f"holdfast.{fault.pop('who')}.main" in sys.orig_argv:
    arm(**fault)
