"""From a file to patches: the geometry keeps its promises, pixels are where they belong, bad files are refused."""

from __future__ import annotations

import gc
import io
import math
import random
import struct
import sys
import warnings
import zlib
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch", reason="not run: torch is not installed")
Image = pytest.importorskip("PIL.Image", reason="not run: pillow is not installed")

from deepinfer.engine import images
from deepinfer.engine.checkpoint.config import VisionConfig
from deepinfer.engine.checkpoint.errors import PackageMissing
from deepinfer.engine.images import MAX_PIXELS, Grid, ImageRefused, contained, plan, read, resize

RELEASED = VisionConfig(32, 1024, 16, 2816, 14, 10000.0, 3, 1024, 295936, None)
SMALL = replace(RELEASED, max_image_tokens=64, min_pixels=7056)


def encoded(picture, kind="PNG", **more):
    out = io.BytesIO()
    picture.save(out, kind, **more)
    return out.getvalue()


def noise(width, height, mode="RGB", seed=1):
    count = width * height * len(Image.new(mode, (1, 1)).getbands())
    return Image.frombytes(mode, (width, height), random.Random(seed).randbytes(count))


def png_header(width, height):
    """A PNG that says it is large and holds nothing."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


# sizes -> (width, height), worked out by hand from patches of 14, tokens of 42, 1024 tokens, 544 * 544 pixels
@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ((544, 544), (546, 546)),  # 39 patches, 13 tokens a side: 13 * 14 + 2
        ((640, 480), (644, 490)),  # enough pixels, ceiling to 46 x 35 patches
        ((100, 100), (546, 546)),  # grows by 5.44, then the ceiling
        ((2000, 1000), (1848, 924)),  # 44 x 22 tokens: 22 * 45 + 2 = 992; scale 0.924
        ((1, 1), (546, 546)),
        ((10, 10000), (28, 17206)),  # grows by 1.72 to 17 x 17202: 410 rows of one token
        ((10, 100000), (42, 21462)),  # one column: 511 rows of a token and its line end
        ((10000, 1), (42882, 42)),  # one row: 1021 tokens and a line end
    ],
)
def test_sizes_worked_out_by_hand(size, expected):
    grid = plan(*size, RELEASED)
    assert (grid.width, grid.height) == expected


def test_a_span_has_a_line_end_per_row_and_two_delimiters():
    grid = Grid(14 * 7, 14 * 4, 14, 3)
    assert (grid.rows, grid.columns, grid.token_rows, grid.token_columns) == (4, 7, 2, 3)
    assert grid.tokens == 2 * (3 + 1) + 2


@pytest.mark.parametrize("vision", [RELEASED, SMALL], ids=["released", "small"])
def test_every_grid_keeps_its_promises(vision):
    """The invariants are checked by counting, from the sides alone."""
    draw = random.Random()  # fresh sizes in each run
    sizes = [(draw.randint(1, 3000), draw.randint(1, 3000)) for _ in range(300)]
    sizes += [(int(10 ** draw.uniform(0, 5)), int(10 ** draw.uniform(0, 5))) for _ in range(700)]
    for width, height in sizes:
        grid = plan(width, height, vision)
        said = "%d x %d -> %s" % (width, height, grid)
        assert grid.width >= 14 and grid.height >= 14, said
        assert grid.width % 14 == 0 and grid.height % 14 == 0, said
        across = len(range(0, grid.width, 42))
        down = len(range(0, grid.height, 42))
        tokens = 1 + down * (across + 1) + 1
        assert tokens == grid.tokens <= vision.max_image_tokens, said
        assert (grid.rows * 14, grid.columns * 14) == (grid.height, grid.width), said
        limited = _tokens_if_unlimited(width, height, vision) > vision.max_image_tokens
        if not limited:
            # int() takes less than a pixel of each side before the ceiling gives it back
            small = min(width * height, vision.min_pixels)
            assert (grid.width + 1) * (grid.height + 1) >= small, said
            assert grid.width >= width and grid.height >= height, said
        elif min(grid.width, grid.height) > 42:
            assert 14 / min(grid.width, grid.height) >= abs(math.log(grid.width * height / grid.height / width)) / 2


def _tokens_if_unlimited(width, height, vision):
    grow = max(1.0, math.sqrt(vision.min_pixels / (width * height)))
    if grow > 1.0:
        width, height = int(width * grow), int(height * grow)
    return math.ceil(math.ceil(height / 14) / 3) * (math.ceil(math.ceil(width / 14) / 3) + 1) + 2


def test_a_limit_of_proportions_narrows_and_stretches():
    wide = replace(RELEASED, max_wh_ratio=2.0)
    assert plan(3000, 600, wide) == replace(plan(1200, 600, RELEASED), stretch=True)
    assert plan(1200, 600, wide).stretch
    assert plan(1199, 600, wide) == plan(1199, 600, RELEASED)
    grid = Grid(28, 14, 14, 3, stretch=True)
    left = Image.new("RGB", (100, 10))
    left.paste((255, 255, 255), (50, 0, 100, 10))
    assert resize(left, grid).getpixel((0, 0)) == (0, 0, 0)  # no bar of padding above


def test_what_does_not_fit_any_grid_is_refused():
    with pytest.raises(ImageRefused, match="1000 x 521 pixels does not fit 5 tokens"):
        plan(1000, 521, replace(RELEASED, max_image_tokens=5, downsample_ratio=1))  # half a patch high


@pytest.mark.parametrize(
    ("size", "target", "expected"),
    [
        ((100, 50), (42, 42), (42, 21)),
        ((50, 100), (42, 42), (21, 42)),
        ((7, 7), (42, 42), (42, 42)),
        ((1000, 1), (42, 42), (42, 42)),  # the side would be 0: stretched
        ((3, 2), (14, 14), (14, 9)),  # 9.33
    ],
)
def test_an_image_is_contained_by_its_target(size, target, expected):
    assert contained(size, target) == expected


def test_padding_is_even_and_grey():
    padded = resize(Image.new("RGB", (100, 50), (255, 0, 0)), Grid(42, 42, 14, 3))
    column = [padded.getpixel((20, y)) for y in range(42)]
    grey = [y for y in range(42) if column[y] == (127, 127, 127)]
    assert grey == [*range(10), *range(31, 42)]  # 21 rows left: half is 10.5, rounded to even
    assert column[20] == (255, 0, 0)


def test_patches_hold_each_pixel_at_its_place():
    source = noise(42, 28)
    got = images.patches(source, 14)
    assert got.shape == (6, 588) and got.dtype == torch.bfloat16
    for number in range(6):
        row, column = divmod(number, 3)
        place = 0
        for channel in range(3):
            for y in range(14):
                for x in range(14):
                    value = source.getpixel((column * 14 + x, row * 14 + y))[channel]
                    assert abs(float(got[number, place]) - (2.0 * value / 255.0 - 1.0)) <= 2.0**-8
                    place += 1


@pytest.mark.parametrize("mode", ["L", "LA", "RGB", "RGBA", "P", "1", "CMYK"])
def test_every_kind_of_pixel_becomes_rgb(mode):
    source = noise(90, 85) if mode in ("P", "1") else noise(90, 85, mode)
    source = source.convert(mode)
    expected = read(source.convert("RGB"), SMALL).patches
    assert torch.equal(read(source, SMALL).patches, expected)
    if mode != "CMYK":
        assert torch.equal(read(encoded(source), SMALL).patches, expected)


def test_a_palette_with_transparency_is_read_without_a_warning():
    source = noise(90, 85).convert("P", palette=Image.Palette.ADAPTIVE)
    data = encoded(source, transparency=bytes(range(256)))
    assert torch.equal(read(data, SMALL).patches, read(source.convert("RGB"), SMALL).patches)


@pytest.mark.parametrize("kind", ["GIF", "WEBP"])
def test_the_first_frame_of_an_animation_is_read(kind):
    frames = [noise(90, 85, seed=seed).quantize(16).convert("RGB") for seed in (1, 2)]
    more = {"lossless": True} if kind == "WEBP" else {}
    data = encoded(frames[0], kind, save_all=True, append_images=frames[1:], **more)
    assert Image.open(io.BytesIO(data)).n_frames == 2
    assert torch.equal(read(data, SMALL).patches, read(frames[0], SMALL).patches)


def test_a_path_bytes_and_an_image_are_the_same(tmp_path):
    source = noise(120, 77)
    path = tmp_path / "one.png"
    source.save(path)
    one = read(source, SMALL)
    assert one.patches.shape == (one.grid.rows * one.grid.columns, 588)
    for other in (path, str(path), path.read_bytes(), Image.open(path)):
        assert torch.equal(read(other, SMALL).patches, one.patches)


def test_a_file_is_closed_also_when_it_is_refused(tmp_path):
    animated, large = tmp_path / "two.gif", tmp_path / "large.png"
    noise(90, 85).save(animated, save_all=True, append_images=[noise(90, 85, seed=2)])
    large.write_bytes(png_header(1 << 14, (1 << 12) + 1))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always", ResourceWarning)
        read(animated, SMALL)
        with pytest.raises(ImageRefused):
            read(large, SMALL)
        gc.collect()
    assert [str(one.message) for one in seen] == []


WHOLE = encoded(noise(120, 90))
JPEG = encoded(noise(120, 90), "JPEG")


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "cannot be read"),
        (b"no image at all", "cannot be read"),
        (WHOLE[: len(WHOLE) // 2], "cannot be read"),
        (JPEG[: len(JPEG) // 2], "truncated"),
        (WHOLE[:200] + bytes(50) + WHOLE[250:], "cannot be read"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 100 100\n", "cannot be read"),
        (png_header(1 << 14, (1 << 12) + 1), "more than %d pixels" % MAX_PIXELS),
        (png_header(1 << 16, 1 << 16), "more than %d pixels" % MAX_PIXELS),
        (png_header(0, 40), "cannot be read"),
        (encoded(Image.new("I;16", (90, 90))), "of the kind I;16"),
        (Image.new("RGB", (0, 10)), "0 x 10 pixels"),
        (Image.new("F", (10, 10)), "of the kind F"),
        (17, "is no image"),
    ],
)
def test_what_is_no_readable_image_is_refused(data, said):
    with pytest.raises(ImageRefused, match=said) as caught:
        read(data, RELEASED)
    assert str(caught.value).startswith("DI602: ") and "\n  fix: " in str(caught.value)


def test_the_largest_size_passes_the_header_check():
    """A header of exactly the limit is refused for its missing pixels, not for its size."""
    with pytest.raises(ImageRefused, match="cannot be read"):
        read(png_header(1 << 14, 1 << 12), RELEASED)


def test_a_folder_and_a_missing_file_are_refused(tmp_path):
    for path in (tmp_path, tmp_path / "none.png"):
        with pytest.raises(ImageRefused, match="is no file"):
            read(path, RELEASED)


def test_a_missing_pillow_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(PackageMissing, match="pillow is not installed"):
        read(WHOLE, RELEASED)


def test_measuring_reads_the_header_alone():
    data = encoded(noise(300, 500))
    whole = images.read(data, RELEASED).grid
    assert images.measure(data, RELEASED) == whole
    cut = data[: len(data) // 2]
    assert images.measure(cut, RELEASED) == whole
    with pytest.raises(ImageRefused):
        images.read(cut, RELEASED)
