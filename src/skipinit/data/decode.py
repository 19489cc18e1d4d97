"""One photograph from file to 224×224: which part of it to take, and how to decode no more than needed.

Training takes a random part, testing the centre; either is a box in the photograph's own pixels.
"""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..errors import DataError
from .seeds import mix

SIZE = 224


class Crop(NamedTuple):
    """The box of a photograph to show, in its pixels, and whether to mirror it."""

    left: float
    top: float
    right: float
    bottom: float
    flip: bool


CropRule = Callable[[int, int, int], Crop]
"""From an image's number, width and height to its crop."""


@dataclass(frozen=True)
class RandomCrop:
    """Training: 8–100 % of the area at a ratio of 3/4–4/3, anywhere, mirrored half the time.

    The choice depends on (seed, epoch, image) and nothing else, so neither the number of worker processes
    nor where a run was resumed can change it.
    """

    seed: int
    epoch: int

    def __call__(self, index: int, width: int, height: int) -> Crop:
        """The crop of image `index` in this epoch."""
        uniform = random.Random(mix("crop", self.seed, self.epoch, index)).random
        flip = uniform() < 0.5
        for _ in range(10):
            area = (0.08 + 0.92 * uniform()) * width * height
            ratio = (3 / 4) ** (1 - 2 * uniform())  # log-uniform between 3/4 and 4/3
            w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < w <= width and 0 < h <= height:
                left, top = int(uniform() * (width - w + 1)), int(uniform() * (height - h + 1))
                return Crop(left, top, left + w, top + h, flip)
        # So long and thin that nothing fitted: the largest centred part of an allowed ratio.
        return _centred(width, height, min(width, height * 4 / 3), min(height, width * 4 / 3), flip)


@dataclass(frozen=True)
class CentreCrop:
    """Testing: the shorter side brought to 256, the central 224×224 of that."""

    def __call__(self, index: int, width: int, height: int) -> Crop:
        """The same for every image of that width and height."""
        side = min(width, height) * SIZE / 256
        return _centred(width, height, side, side, flip=False)


def _centred(width: int, height: int, w: float, h: float, flip: bool) -> Crop:
    return Crop((width - w) / 2, (height - h) / 2, (width + w) / 2, (height + h) / 2, flip)


def read_image(path: Path, index: int, rule: CropRule) -> NDArray[np.uint8]:
    """Image `index` of a data set, at `path`, cropped by `rule`: uint8 (224, 224, 3)."""
    try:
        with Image.open(path) as photograph:
            crop = rule(index, *photograph.size)
            pixels = np.asarray(_show(photograph, crop))
    except (OSError, SyntaxError, ValueError, struct.error, Image.DecompressionBombError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(f"{path}: not a readable image ({reason}); replace or remove it") from error
    return pixels


def _show(photograph: Image.Image, crop: Crop) -> Image.Image:
    width, height = photograph.size
    # A JPEG decodes at 1/2, 1/4 or 1/8 of its size for less work. Ask for the smallest size at which the
    # crop still has 224 pixels each way; formats other than JPEG ignore the request.
    least = (
        math.ceil(width * SIZE / (crop.right - crop.left)),
        math.ceil(height * SIZE / (crop.bottom - crop.top)),
    )
    drafted = photograph.draft("RGB", least)
    shrink = drafted[1][2] / width if drafted else 1.0
    box = (crop.left * shrink, crop.top * shrink, crop.right * shrink, crop.bottom * shrink)
    rgb = photograph if photograph.mode == "RGB" else photograph.convert("RGB")
    shown = rgb.resize((SIZE, SIZE), Image.Resampling.BILINEAR, box=box)
    return shown.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if crop.flip else shown
