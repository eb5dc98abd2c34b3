"""The codecs by name, as values of the job key `compression.method`."""

from __future__ import annotations

from holdfast.collectives.compression.codec import PIECE, Codec, size_of
from holdfast.collectives.compression.rounded import Bf16, FourBit, Int8
from holdfast.collectives.compression.top_k import TopK
from holdfast.job.settings import CompressionSettings


def codec_of(settings: CompressionSettings) -> Codec | None:
    """The codec that a job chooses; None if it chooses none."""
    match settings.method:
        case "bf16":
            return Bf16()
        case "int8":
            return Int8()
        case "4bit":
            return FourBit()
        case "topk":
            return TopK(settings.share)
        case _:
            return None


def ratio_of(codec: Codec, item_bytes: int) -> float:
    """Factor by which long messages of elements of `item_bytes` shrink."""
    return item_bytes * PIECE / size_of(codec, PIECE)
