"""The page of all job keys, made of the fields of jobs: `python tests/job_keys.py` writes it."""

import ast
import inspect
import json
import textwrap
from pathlib import Path
from typing import get_args

from pydantic import BaseModel

from holdfast.job.script_job import ScriptJob
from holdfast.job.train_job import TrainJob, TrainRequest

PAGE = Path(__file__).parent.parent / "docs" / "job-keys.md"
SEE = {
    "data": "[Data](data.md)",
    "model": "[Models](jobs.md#models)",
    "init_from.path": "[Use the trained model](using-weights.md)",
    "optimizer": "[Optimizers and schedules](jobs.md#optimizers-and-schedules)",
    "schedule": "[Optimizers and schedules](jobs.md#optimizers-and-schedules)",
    "workers": "[Shards and workers](jobs.md#shards-and-workers)",
    "shards": "[Shards and workers](jobs.md#shards-and-workers)",
    "extend": "[Stop and resume](jobs.md#stop-and-resume)",
    "balance": "[Mixed hardware](balance.md)",
    "numerics": "[Numerics](jobs.md#numerics)",
    "collective": "[All-reduce](concepts/collectives.md)",
    "compression.method": "[Compressed gradients](concepts/compression.md)",
    "precision": "[Half precision](concepts/step.md#half-precision)",
    "hosts": "[Several hosts](hosts.md)",
    "etcd.endpoints": "[A journal in etcd](hosts.md#a-journal-in-etcd)",
    "heartbeat.timeout_s": "[When a host counts as lost](hosts.md#when-a-host-counts-as-lost)",
    "resources.cpus": "[Resources](engines.md#resources)",
    "on_failure": "[Failure policies](concepts/recovery.md#failure-policies)",
    "non_finite": "[Non-finite gradients](concepts/step.md#non-finite-gradients)",
    "verify.recompute": "[What is compared](concepts/step.md#what-is-compared)",
    "checkpoint.every": "[Checkpoints](checkpoints.md)",
    "checkpoint.sign": "[Checkpoints that can be trusted](checkpoint-security.md)",
    "backup.to": "[Backup](backup.md)",
    "env": "[Environment variables](jobs.md#environment-variables)",
    "notify": "[Notifications](recovery-reports.md#notifications)",
    "trackers": "[Trackers](trackers.md)",
    "script.path": "[Scripts](scripts.md)",
}
"""Pages that say more about a key."""

INTRO = """\
# Job keys

All keys of a job. A key is set in the job file, or as `KEY=VALUE` on the command line and in the
mapping that Python's `holdfast.train` takes. The ten that people set first are in
[Jobs](jobs.md#job-keys). This page is generated from the fields of a job, in `job/`, by
`python tests/job_keys.py`.

Keys marked with * may change when a run is resumed; so may `model.gradient_checkpointing`,
`model.path` and `model.cache`. All others keep their values, because the weights depend on them.
`non_finite` lets a failed run continue without the step that stopped it.

## Jobs that train

"""
SCRIPTS = """
## Jobs with a script

A job with a `script` has these keys, and of those above
{shared}.

"""


def page():
    """The text of the page."""
    train = list(rows(TrainRequest, TrainJob.FREE_ON_RESUME))
    own = [name for name in ScriptJob.model_fields if name not in TrainRequest.model_fields]
    scripts = [
        row
        for row in rows(ScriptJob, frozenset())
        if row.split("`")[1].partition(".")[0] in {*own, "on_failure"}
    ]
    shared = [f"`{name}`" for name in ScriptJob.model_fields if name not in {*own, "on_failure"}]
    text = textwrap.fill(", ".join(shared), 100)
    return INTRO + table(train) + SCRIPTS.format(shared=text) + table(scripts)


def table(lines):
    return "".join(["| key | default | meaning |\n|---|---|---|\n", *lines])


def rows(spec, free, prefix=""):
    """A row for each key of a job or a part, with those of its parts."""
    said = meanings(spec)
    for name, field in spec.model_fields.items():
        if name == "program":  # no key that users set
            continue
        key = prefix + name
        part = part_of(field.annotation)
        if part is not None:
            yield from rows(part, free, f"{key}.")
            continue
        mark = " *" if key.partition(".")[0] in free else ""
        meaning = said[name].replace("|", "\\|")
        see = f" See {SEE[key]}." if key in SEE else ""
        yield f"| `{key}`{mark} | {default_of(field)} | {meaning}{see} |\n"


def part_of(annotation):
    """The part that a key holds, if it has keys of its own and comes in one kind."""
    kinds = [each for each in (annotation, *get_args(annotation)) if inspect.isclass(each)]
    parts = [each for each in kinds if issubclass(each, BaseModel)]
    return parts[0] if len(parts) == 1 else None


def meanings(spec):
    """What the source says below each field of a class and of those that it inherits from."""
    said = {}
    for kind in reversed(spec.__mro__):
        if not issubclass(kind, BaseModel) or kind is BaseModel:
            continue
        (body,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
        for field, after in zip(body.body, body.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(after, ast.Expr):
                said[field.target.id] = " ".join(ast.literal_eval(after.value).split())
    return said


def default_of(field):
    default = field.get_default(call_default_factory=True)
    if isinstance(default, BaseModel):
        return f"`{default.name}`"
    if field.is_required() or default in (None, (), {}, ""):
        return "none"
    if isinstance(default, float) and default.is_integer():
        default = int(default)
    return f"`{default if isinstance(default, str) else json.dumps(default)}`"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
