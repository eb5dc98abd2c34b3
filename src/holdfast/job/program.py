"""The program that asks for a run, as far as its workers must see what it sees. Users set none of
this: `holdfast.train` describes the program that calls it.
"""

from __future__ import annotations

from holdfast.job.part import Spec


class Program(Spec):
    """Values of the launching program that an import of its file alone does not give.

    Attributes:
        argv: Its `sys.argv`.
    """

    argv: tuple[str, ...]
