"""Room: whether the host has the memory that a run will use, asked before any of it is used."""

from __future__ import annotations

from rich.filesize import decimal as in_words

from holdfast.core import tree
from holdfast.errors import JobError
from holdfast.job.train_job import TrainJob
from holdfast.linux.host_memory import available
from holdfast.worker.sections import Sections
from holdfast.worker.shard import plan_of, work_items_of


def check_memory(job: TrainJob, sections: Sections, replica_bytes: int) -> None:
    """Compare what the run will certainly write to with what can be had.

    What a model needs for its activations is not known yet and not counted.

    Args:
        job: What is to be run.
        sections: What the workers share, mapped and not yet written to.
        replica_bytes: Size of a replica; 0 where they lie on GPUs.

    Raises:
        JobError: The run cannot fit.
    """
    plan = plan_of(job)
    leaves = [[unit.leaf for unit in work_items_of(plan, rank, job)] for rank in range(job.workers)]
    partials = sum(tree.most_partials(own, job.num_leaves) for own in leaves)
    shared, own = sections.used_bytes(partials), job.workers * replica_bytes
    host = available()
    if shared + own <= host.size_bytes:
        return
    advice = ["start fewer workers"] if job.workers > 1 else []
    advice += ["set fewer shards"] if partials > job.workers else []
    raise JobError(
        f"the run needs {in_words(shared + own)} of memory at least, and "
        f"{in_words(host.size_bytes)} are left of {host.limit}. {job.workers} workers keep "
        f"{in_words(replica_bytes)} each for weights and optimizer, and share {in_words(shared)} "
        f"for gradients and the like: {', '.join([*advice, 'make the model smaller'])}, "
        "or give it more memory"
    )
