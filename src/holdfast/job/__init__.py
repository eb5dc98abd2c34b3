"""Jobs: what users ask for, as keys in a YAML file, checked."""

from typing import Final

JOB_FILE: Final = "job.yaml"
"""The file of a run directory that holds its job."""
