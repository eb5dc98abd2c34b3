"""Hugging Face's Trainer in a run: its own loop, whose steps are holdfast's.

    from holdfast.integrations.transformers import Trainer      # instead of transformers
    LiveSeq2Seq = live(Seq2SeqTrainer)                          # for a subclass

Model, collator, data, arguments, optimizer, scheduler, callbacks and evaluation stay the library's.
Outside of a run, the classes do what the library's own do.
"""

from holdfast.integrations.transformers.trainer import LiveTrainer, Trainer, live

__all__ = ["LiveTrainer", "Trainer", "live"]
