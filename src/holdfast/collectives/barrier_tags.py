"""The tags of all barriers, and in words what a worker does that waits at one; see `group`."""

from __future__ import annotations

import enum
from types import MappingProxyType
from typing import Final

from holdfast.collectives.group import BarrierTag


@enum.unique
class ReduceTag(BarrierTag):
    """Purpose of a barrier of the reducer."""

    TABLES = 1, "exchanging tables of partial sums for step {next}"
    PARTIALS = 2, "summing the gradient of step {next}"
    REDUCED = 3, "summing the gradient of step {next}"
    CLIP = 4, "clipping the gradient of step {next}"
    DIGESTS = 5, "summing the gradient of step {next}"
    CHOICE = 6, "choosing how gradients are summed from step {next} on"


@enum.unique
class WorkerTag(BarrierTag):
    """Purpose of any other barrier of a worker."""

    ATTACH = 16, "attaching the model"
    RESTORE = 17, "restoring a checkpoint"
    STAGED = 18, "staging the state of step {step} for transfer"
    COPIED = 19, "transferring the state of step {step}"
    WEIGHTS = 20, "exchanging the weights of shards of step {next}"
    EVALUATION = 21, "evaluating after step {step}"
    END = 22, "at the end of the training function"
    RECHECK = 23, "recomputing shards of step {next}"
    COMPARE = 24, "comparing replicas after step {step}"
    VERIFY = 25, "verifying shards of step {next}"
    COMMIT = 26, "committing step {next}"
    SAVED = 27, "saving the checkpoint of step {step}"
    PLAN = 28, "planning step {next}"
    RECEIVED = 29, "receiving the state of step {step}"
    MAPPED = 30, "mapping the memory of other workers"
    NORM = 31, "agreeing on the norm of step {next}"
    PAUSE = 32, "at the end of a pause after step {step}"
    STAGE = 33, "waiting for layers of another worker in step {next}"
    GATHER = 34, "gathering layers for step {next}"


_TAGS: Final = MappingProxyType({tag.value: tag for kind in (ReduceTag, WorkerTag) for tag in kind})


def describe(tag: int, step: int) -> str:
    """Activity of a worker that waits at a barrier, after "rank 2 is"."""
    return _TAGS[tag].doing.format(step=step, next=step + 1)
