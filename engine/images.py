"""From an image file to the patches that the vision tower reads: opening, geometry, resizing, values.

What is read: PNG, JPEG, WebP, GIF and BMP with 8 bits a channel, the first frame of an animated file, at most
``MAX_PIXELS`` pixels by its header, before anything is decoded. Transparency is dropped, an orientation tag is not
applied. Anything else is refused, alone: the other requests of the batch go on.
"""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from deepinfer.engine.checkpoint.config import VisionConfig
from deepinfer.engine.checkpoint.shards import missing
from deepinfer.errors import DeepInferError

if TYPE_CHECKING:
    from PIL.Image import Image

Source = Any  # str | Path | bytes | PIL.Image.Image; named loosely because Pillow may not be installed
Taken = TypeVar("Taken")
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")  # no format whose decoder starts a program or reads another file
MODES = ("1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "HSV", "LAB")  # 8 bits
MAX_PIXELS = 1 << 26  # 67 million: 192 MiB once decoded
PAD_VALUE = 127  # the nearest to zero after scaling
MEAN, DEVIATION = 0.5, 0.5
DELIMITERS = 2  # start and end of a span


class ImageRefused(DeepInferError):
    """An image of a request cannot be read: no image, cut short, too large, empty. The other requests go on."""

    code = "DI602"


@dataclass(frozen=True)
class Grid:
    """Sizes of one image: ``width`` and ``height`` in pixels after resizing, whole patches.

    ``rows`` and ``columns`` count patches, ``token_rows`` and ``token_columns`` what the aligner makes of them.
    """

    width: int
    height: int
    patch: int
    merge: int
    stretch: bool = False

    @property
    def rows(self) -> int:
        """Patches from top to bottom."""
        return self.height // self.patch

    @property
    def columns(self) -> int:
        """Patches from left to right."""
        return self.width // self.patch

    @property
    def token_rows(self) -> int:
        """Rows of image tokens."""
        return -(-self.rows // self.merge)

    @property
    def token_columns(self) -> int:
        """Image tokens in a row."""
        return -(-self.columns // self.merge)

    @property
    def tokens(self) -> int:
        """Length of the span: start, every row with its line end, end."""
        return self.token_rows * (self.token_columns + 1) + DELIMITERS


@dataclass(frozen=True)
class Picture:
    """``patches`` bf16 [rows * columns, 3 * patch * patch] in raster order, channels outermost inside a patch."""

    grid: Grid
    patches: torch.Tensor


def plan(width: int, height: int, vision: VisionConfig) -> Grid:
    """The grid of an image of ``width`` x ``height`` pixels, each 1 or more.

    Large enough (``min_pixels``), few enough tokens (``max_image_tokens``), about its proportions.
    """
    patch, merge, ratio = vision.patch_size, vision.downsample_ratio, vision.max_wh_ratio
    stretch = bool(ratio) and width >= height * (ratio or 0.0)
    wanted: tuple[float, float] = (min(width, height * ratio) if ratio else width, height)
    pixels = wanted[0] * wanted[1]
    if pixels < vision.min_pixels:
        scale = (vision.min_pixels / pixels) ** 0.5
        wanted = (int(wanted[0] * scale), int(wanted[1] * scale))
    grid = Grid(math.ceil(wanted[0] / patch) * patch, math.ceil(wanted[1] / patch) * patch, patch, merge, stretch)
    if grid.tokens > vision.max_image_tokens:
        grid = Grid(*_largest(*wanted, vision), patch, merge, stretch)
    if min(grid.width, grid.height) < patch or grid.tokens > vision.max_image_tokens:
        what = "an image of %d x %d pixels does not fit %d tokens" % (width, height, vision.max_image_tokens)
        raise ImageRefused(what, fix="crop it to more even sides")
    return grid


def _largest(width: float, height: float, vision: VisionConfig) -> tuple[int, int]:
    """(width, height) of the largest grid within the token limit; a row of c tokens costs c + 1."""
    places, unit = vision.max_image_tokens - DELIMITERS, vision.patch_size * vision.downsample_ratio
    ratio = height / width
    columns = math.sqrt(places / ratio + 0.25) - 0.5
    rows = columns * ratio
    if columns < 1:
        return unit, places // 2 * unit
    if rows < 1:
        return (places - 1) * unit, unit
    scale = min(math.floor(columns) * unit / width, math.floor(rows) * unit / height)
    patch = vision.patch_size
    return math.floor(width * scale / patch) * patch, math.floor(height * scale / patch) * patch


def measure(source: Source, vision: VisionConfig) -> Grid:
    """The grid of one image by its header alone: nothing is decoded. Raises what :func:`read` raises for a header."""
    width, height = _opened(source, lambda image: image.size)
    return plan(width, height, vision)


def read(source: Source, vision: VisionConfig) -> Picture:
    """Open, check, resize and scale one image: a path, the bytes of a file, or an image of Pillow.

    Raises :class:`ImageRefused`, or the error of a missing package.
    """
    rgb = _opened(source, _rgb)
    grid = plan(rgb.width, rgb.height, vision)
    return Picture(grid, patches(resize(rgb, grid), vision.patch_size))


def _opened(source: Source, take: Callable[[Image], Taken]) -> Taken:
    """What ``take`` makes of the first frame, once its header is found fit."""
    try:
        from PIL import Image
    except ImportError as error:
        raise missing("pillow") from error
    name = _name(source)
    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        try:
            return _taken(source, name, take)
        except DeepInferError:
            raise
        except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
            raise _too_large(name) from error
        except Exception as error:  # decoders raise whatever they meet: OSError, ValueError, struct.error, SyntaxError
            what = "%s cannot be read as an image: %s" % (name, str(error).partition("\n")[0] or type(error).__name__)
            raise ImageRefused(what, fix="give a whole file in one of %s" % ", ".join(FORMATS)) from error


def _taken(source: Source, name: str, take: Callable[[Image], Taken]) -> Taken:
    """A file is closed whatever happens, an image of Pillow is left to its owner."""
    from PIL import Image

    if isinstance(source, Image.Image):
        _check(source, name)
        return take(source)
    with Image.open(_stream(source), formats=FORMATS) as opened:
        _check(opened, name)
        return take(opened)


def _name(source: Source) -> str:
    return str(source) if isinstance(source, (str, Path)) else "an image given as %s" % type(source).__name__


def _stream(source: Source) -> io.BytesIO | Path:
    if isinstance(source, (bytes, bytearray, memoryview)):
        return io.BytesIO(source)
    if not isinstance(source, (str, Path)):
        raise ImageRefused("%s is no image" % _name(source), fix="a path, the bytes of a file, or a PIL image")
    if not Path(source).is_file():  # a pipe or a device could block for ever
        raise ImageRefused("%s is no file" % source, fix="name an image file")
    return Path(source)


def _check(opened: Image, name: str) -> None:
    """What the header says, before a pixel is decoded."""
    width, height = opened.size
    if width < 1 or height < 1:
        raise ImageRefused("%s has %d x %d pixels" % (name, width, height), fix="give an image with pixels")
    if width * height > MAX_PIXELS:
        raise _too_large(name)
    if opened.mode not in MODES:
        what = "%s has pixels of the kind %s" % (name, opened.mode)
        raise ImageRefused(what, fix="convert it to 8 bits a channel")


def _too_large(name: str) -> ImageRefused:
    return ImageRefused("%s has more than %d pixels" % (name, MAX_PIXELS), fix="make it smaller")


def _rgb(opened: Image) -> Image:
    """The first frame in RGB; a palette with transparency goes through RGBA, as Pillow asks for."""
    if opened.mode == "P" and "transparency" in opened.info:
        return opened.convert("RGBA").convert("RGB")
    return opened.convert("RGB")


def resize(image: Image, grid: Grid) -> Image:
    """``image`` scaled into ``grid``, proportions kept and the rest filled evenly, unless it is to be stretched."""
    from PIL import Image

    target = (grid.width, grid.height)
    size = target if grid.stretch else contained(image.size, target)
    scaled = image.resize(size, Image.Resampling.BICUBIC)
    if size == target:
        return scaled
    padded = Image.new("RGB", target, (PAD_VALUE,) * 3)
    padded.paste(scaled, (round((target[0] - size[0]) / 2), round((target[1] - size[1]) / 2)))
    return padded


def contained(size: tuple[int, int], target: tuple[int, int]) -> tuple[int, int]:
    """(width, height) with the proportions of ``size``, as large as fits; all of ``target`` where a side would be 0."""
    width, height = target
    if size[0] / size[1] > width / height:
        height = round(size[1] / size[0] * width)
    elif size[0] / size[1] < width / height:
        width = round(size[0] / size[1] * height)
    return (width, height) if width and height else target


def patches(image: Image, patch: int) -> torch.Tensor:
    """bf16 [rows * columns, 3 * patch * patch] of an RGB image of whole patches: values from -1 to 1."""
    values = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
    values = values.view(image.height // patch, patch, image.width // patch, patch, 3)
    values = values.permute(0, 2, 4, 1, 3).reshape(-1, 3 * patch * patch)
    return ((values.float() / 255.0 - MEAN) / DEVIATION).to(torch.bfloat16)
