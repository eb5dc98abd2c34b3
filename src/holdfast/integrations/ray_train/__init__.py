"""Ray Train: a TorchTrainer whose workers run holdfast's agents.

    TorchTrainer ── places ─▶ workers of Ray Train, each with one agent ─▶ training processes
                                rank 0: with the coordinator
                 ◀─ report ──   metrics and checkpoints

A training process that dies is recovered by holdfast, and Ray notices nothing. If a worker of Ray
Train or its node is lost, Ray starts all of them again, as FailureConfig says, and the run resumes
from its newest checkpoint.
"""

from holdfast.integrations.ray_train.loop import state_dict, train_loop

__all__ = ["state_dict", "train_loop"]
