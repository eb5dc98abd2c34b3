"""Lightning's Trainer in a run: its own loops, whose steps are holdfast's.

    from holdfast.integrations.lightning import Trainer      # instead of lightning

Module, data module, optimizer, schedulers, callbacks, loggers and validation stay the library's.
Outside of a run, the class does what the library's own does.
"""

from holdfast.integrations.lightning.trainer import Trainer

__all__ = ["Trainer"]
