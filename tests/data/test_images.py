"""Image files that exist in the wild, made here, and files that are none."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sightline.data.images import ImageError, load_image


def encode(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def test_one_pixel() -> None:
    image = load_image(encode(Image.new("RGB", (1, 1), (10, 20, 30))))
    assert image.mode == "RGB"
    assert image.getpixel((0, 0)) == (10, 20, 30)


def test_cmyk() -> None:
    image = load_image(encode(Image.new("CMYK", (8, 8), (0, 255, 255, 0)), "JPEG"))
    red, green, blue = image.getpixel((4, 4))
    assert red > 240
    assert max(green, blue) < 15


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_sixteen_bits_are_scaled(kind: str) -> None:
    values = np.array([[0, 257, 32896, 65535]], np.uint16)
    image = load_image(encode(Image.fromarray(values), kind))
    assert np.asarray(image)[0].tolist() == [[0] * 3, [1] * 3, [128] * 3, [255] * 3]


def test_thirty_two_bits_are_rejected() -> None:
    data = encode(Image.fromarray(np.array([[0, 1 << 20]], np.int32)), "TIFF")
    with pytest.raises(ImageError, match=r"^big\.tif: .*32 bits"):
        load_image(data, name="big.tif")


def test_floating_point_is_rejected() -> None:
    with pytest.raises(ImageError, match="floating-point"):
        load_image(encode(Image.fromarray(np.ones((2, 2), np.float32)), "TIFF"))


@pytest.mark.parametrize("turn", range(1, 9))
def test_exif_turns_upright(turn: int) -> None:
    upright = Image.fromarray(np.arange(6, dtype=np.uint8).reshape(2, 3) * 40).convert("RGB")
    # What a camera held another way stores: the inverse of what the entry asks for.
    inverse = {2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}
    stored = upright if turn == 1 else upright.transpose(Image.Transpose(inverse[turn]))
    exif = Image.Exif()
    exif[0x0112] = turn
    found = load_image(encode(stored, "PNG", exif=exif))
    assert found.size == upright.size
    np.testing.assert_array_equal(np.asarray(found), np.asarray(upright))


def test_transparent_shows_white() -> None:
    image = Image.new("RGBA", (2, 1), (200, 0, 0, 0))
    image.putpixel((1, 0), (200, 0, 0, 255))
    found = load_image(encode(image))
    assert found.getpixel((0, 0)) == (255, 255, 255)
    assert found.getpixel((1, 0)) == (200, 0, 0)


def test_transparent_palette_and_grey() -> None:
    palette = Image.new("P", (2, 1), 0)
    palette.putpalette([0, 0, 0, 0, 128, 0])
    palette.putpixel((1, 0), 1)
    found = load_image(encode(palette, transparency=0))
    assert [found.getpixel((i, 0)) for i in range(2)] == [(255, 255, 255), (0, 128, 0)]
    grey = load_image(encode(Image.new("LA", (1, 1), (50, 0))))
    assert grey.getpixel((0, 0)) == (255, 255, 255)


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "YCbCr", "LAB"])
def test_every_mode_becomes_rgb(mode: str) -> None:
    image = Image.new("RGB", (3, 5), "white").convert(mode) if mode != "LAB" else Image.new("LAB", (3, 5))
    found = load_image(encode(image, "JPEG" if mode == "YCbCr" else "TIFF"))
    assert (found.mode, found.size) == ("RGB", (3, 5))


def test_grey_for_models_of_one_channel() -> None:
    data = encode(Image.new("RGB", (2, 2), (90, 90, 90)))
    image = load_image(data, channels=1)
    assert (image.mode, image.getpixel((0, 0))) == ("L", 90)
    with pytest.raises(ImageError, match="not 4"):
        load_image(data, channels=4)


def test_first_frame_of_a_moving_picture() -> None:
    frames = [Image.new("RGB", (2, 2), colour) for colour in ("red", "blue")]
    found = load_image(encode(frames[0], "GIF", save_all=True, append_images=frames[1:]))
    assert found.getpixel((0, 0)) == (255, 0, 0)


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_truncated_is_named(tmp_path: Path, kind: str) -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8))
    data = encode(noise, kind)
    path = tmp_path / "half.png"
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(ImageError) as caught:
        load_image(path)
    assert str(caught.value).startswith(f"{path}: cannot be read")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("data", [b"", b"words", b"\x89PNG\r\n\x1a\n", b"GIF89a" + bytes(20)])
def test_what_is_no_image_is_named(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "not.png"
    path.write_bytes(data)
    with pytest.raises(ImageError, match=r"not\.png"):
        load_image(str(path))


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    for path in (tmp_path / "none.png", tmp_path):
        with pytest.raises(ImageError, match="no such image file"):
            load_image(path)


def test_a_bomb_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encode(Image.new("1", (100, 100)))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(ImageError, match="cannot be read"):
        load_image(data)
