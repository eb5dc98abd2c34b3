"""Status: what the exit statuses of commands mean."""

from __future__ import annotations

from typing import Final

FAILED_STATUS: Final = 1
"""Exit status of a run that failed."""

USAGE_STATUS: Final = 2
"""Exit status of a mistake in the job or the command line."""

STOPPED_STATUS: Final = 130
"""Exit status after a signal stopped the run."""
