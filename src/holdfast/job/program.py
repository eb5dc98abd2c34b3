"""The program that asks for a run, as far as its workers must see what it sees. Users set none of
this: `holdfast.train` describes the program that calls it.
"""

from __future__ import annotations

from holdfast.job.part import Spec


class Program(Spec):
    """Values of the launching program that an import of its file alone does not give.

    Attributes:
        argv: Its `sys.argv`.
        changed: Globals that it may have changed, by module and name, as JSON; see `tasks.program`.
        dtype: The default of torch, such as `torch.float32`; empty if it has not imported torch.
    """

    argv: tuple[str, ...]
    changed: str = "{}"
    dtype: str = ""
