"""Pictures: decodes a PNG or JPEG into an array of pixels."""

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
"""End marks. Pillow accepts a picture that is truncated just before them."""


def decoded(data: bytes, height: int, where: str) -> npt.NDArray[np.uint8]:
    """The picture in `data`, uint8[3, height, height].

    It is rotated according to its EXIF data, converted to RGB, scaled until its shorter side has
    `height` pixels, and cropped to its centre. Transparency is dropped.

    Raises:
        JobError: It is damaged, truncated, or of another format.
    """
    try:
        with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
            if (_PNG_END if image.format == "PNG" else _JPEG_END) not in data:
                raise ValueError("it is truncated")
            image.verify()  # the checksums of a PNG; the image cannot be used afterwards
        with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
            upright = ImageOps.exif_transpose(image)
            rgb = _eight_bits(upright).convert("RGB")
            square = ImageOps.fit(rgb, (height, height), Image.Resampling.BILINEAR)
    except Exception as error:  # noqa: BLE001  # a damaged picture may raise anything
        raise JobError(
            f"{where} is damaged or not a PNG or JPEG: {' '.join(str(error).split())}; "
            "replace or remove it"
        ) from None
    return np.ascontiguousarray(np.asarray(square).transpose(2, 0, 1))


def all_decoded(
    pictures: Sequence[bytes], height: int | None, where: str, first: int
) -> npt.NDArray[np.uint8]:
    """The pictures of neighbouring records, uint8[n, 3, height, height].

    Raises:
        JobError: One is damaged, or the job does not set their height.
    """
    if height is None:
        raise JobError(
            f"{where}: these are encoded images; set data.height to their height and width in "
            "pixels"
        )
    return np.stack(
        [
            decoded(picture, height, f"{where}, record {number}")
            for number, picture in enumerate(pictures, start=first)
        ]
    )


def _eight_bits(image: Image.Image) -> Image.Image:
    """A 16-bit grey image without its lower eight bits; Pillow itself would saturate it."""
    if not image.mode.startswith("I"):
        return image
    return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
