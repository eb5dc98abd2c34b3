"""Environment variables that are not left to the shell, or not to the job."""

from __future__ import annotations

from typing import Final

LIBRARIES: Final = ("NCCL_", "TORCH_NCCL_", "GLOO_")
"""Workers get variables with these prefixes from the job alone, and none from a shell."""

UNUSED: Final = ("NCCL_VERSION",)
"""Those that NVIDIA's images set and no library reads."""

TAKEN: Final = {
    "OMP_NUM_THREADS": "set threads_per_worker",
    "MKL_NUM_THREADS": "set threads_per_worker",
    "OPENBLAS_NUM_THREADS": "set threads_per_worker",
    "MKL_CBWR": "set numerics",
    "MKL_DYNAMIC": "set numerics",
    "CUDA_VISIBLE_DEVICES": "set resources.gpus",
    "CUBLAS_WORKSPACE_CONFIG": "remove it: it has the same value in all workers",
    "PYTHONHASHSEED": "remove it: it has the same value in all workers",
    "PYTHONPATH": "install the package, or name the file of the task",
    "GLIBC_TUNABLES": "set it in the environment of each host, which is added to",
    **dict.fromkeys(
        ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
        "remove it: each worker gets its own",
    ),
}
"""Variables that a run sets by itself, and what to do instead."""
