"""From a PNG or JPEG to an array of pixels."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps

from holdfast.errors import JobError

_FORMATS: Final = ("PNG", "JPEG")

_PNG_END: Final = b"\0\0\0\0IEND\xaeB`\x82"
_JPEG_END: Final = b"\xff\xd9"
"""What Pillow does without where a picture is cut just before it."""


def decoded(data: bytes, height: int, where: str) -> npt.NDArray[np.uint8]:
    """The picture in `data`, uint8[3, height, height].

    It is turned as its EXIF data say, made RGB, scaled until its shorter side has `height` pixels,
    and cut to its middle. Transparency is dropped.

    Raises:
        JobError: It is damaged, cut short, or of another format.
    """
    try:
        with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
            if (_PNG_END if image.format == "PNG" else _JPEG_END) not in data:
                raise ValueError("it is cut short")
            image.verify()  # the checksums of a PNG; the image cannot be used after it
        with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
            upright = ImageOps.exif_transpose(image)
            rgb = _eight_bits(upright).convert("RGB")
            square = ImageOps.fit(rgb, (height, height), Image.Resampling.BILINEAR)
    except Exception as error:  # noqa: BLE001  # a damaged picture may raise anything
        raise JobError(
            f"{where} is damaged or no PNG or JPEG: {' '.join(str(error).split())}; "
            "replace or remove it"
        ) from None
    return np.ascontiguousarray(np.asarray(square).transpose(2, 0, 1))


def all_decoded(
    pictures: Sequence[bytes], height: int | None, where: str, first: int
) -> npt.NDArray[np.uint8]:
    """The pictures of neighbouring records, uint8[n, 3, height, height].

    Raises:
        JobError: One is damaged, or the job does not say how high they are to be.
    """
    if height is None:
        raise JobError(
            f"{where}: these are encoded images; set data.height to how many pixels they are to "
            "have each way"
        )
    return np.stack(
        [
            decoded(picture, height, f"{where}, record {number}")
            for number, picture in enumerate(pictures, start=first)
        ]
    )


def _eight_bits(image: Image.Image) -> Image.Image:
    """A grey image of 16 bits with the lower eight cut off; Pillow itself would saturate it."""
    if not image.mode.startswith("I"):
        return image
    return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
