"""Image files that would run programs, block, or take gigabytes."""

import io
import os
import random
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import ExifTags, Image

from sightline.data.image_memory import decoding_bytes
from sightline.data.images import FORMATS, MAX_PIXELS, ORIGINAL, ImageError, find_images, load_image, resize_transform
from sightline.data.readers.folder import FolderReader
from sightline.data.splits import Split

EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 20 20\n%%EndComments\nshowpage\n%%EOF\n"


def encode(kind: str, size: tuple[int, int] = (40, 30), mode: str = "RGB") -> bytes:
    buffer = io.BytesIO()
    Image.new(mode, size).save(buffer, kind)
    return buffer.getvalue()


@pytest.mark.parametrize("kind", ["EPS", "ICO", "PCX", "TGA", "SGI", "DDS", "PDF"])
def test_other_formats_are_not_opened(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("subprocess.check_call", lambda *_, **__: pytest.fail("a program was run"))
    path = tmp_path / "image.png"
    path.write_bytes(EPS if kind == "EPS" else encode(kind))
    with pytest.raises(ImageError, match=rf"^{path}: .*{FORMATS[0]}"):
        load_image(path)


@pytest.mark.parametrize("kind", FORMATS)
def test_documented_formats_are_opened(kind: str) -> None:
    assert load_image(encode(kind)).size == (40, 30)


@pytest.mark.parametrize("kind", ["pipe", "loop", "nowhere", "null", "zero"])
def test_what_is_no_regular_file(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "image.png"
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to({"loop": path, "nowhere": "/none"}.get(kind, f"/dev/{kind}"))
    with pytest.raises(ImageError, match=f"^{path}: "):
        load_image(path)
    assert find_images([str(path)]) == find_images([str(tmp_path)]) == find_images([f"{tmp_path}/*.png"]) == [path]


def test_a_link_to_itself_in_a_dataset(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "0.png").write_bytes(encode("PNG"))
    loop = tmp_path / "a/loop.png"
    loop.symlink_to(loop)
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    split = Split(FolderReader(str(tmp_path)), "val")
    assert (len(split), split.classes) == (3, ("a", "b"))
    with pytest.raises(ImageError, match=r"a/loop\.png"):
        split.image(1)


@pytest.mark.parametrize("size", [(30_000, 1), (1, 30_000), (9_000, 90)])
@pytest.mark.parametrize("target", [(3, 224, 224), (3, 32, 224)])
def test_a_strip_is_cut_before_it_is_resized(size: tuple[int, int], target: tuple[int, int, int]) -> None:
    transform = resize_transform(input_size=target, crop_pct=0.9)
    image = Image.effect_noise(size, 50).convert("RGB")
    seen: list[int] = []
    transform.transforms.insert(2, lambda image: seen.append(image.width * image.height) or image)
    assert tuple(transform(image).shape) == target
    assert seen[0] < 2**24


def test_the_middle_of_a_strip_is_what_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same pixels as without a limit."""
    image = Image.fromarray(np.tile(np.arange(999) % 256, (9, 1)).astype(np.uint8)).convert("RGB")
    transform = resize_transform(input_size=(3, 36, 36), crop_pct=0.9)
    whole = transform(image)
    monkeypatch.setattr("sightline.data.images.MAX_RESIZED", 1000)
    torch.testing.assert_close(transform(image), whole, atol=0.1, rtol=0)


def test_a_size_that_no_image_can_cover() -> None:
    transform = resize_transform(input_size=(3, 1, 65536), crop_pct=1.0)
    with pytest.raises(ImageError, match="65536"):
        transform(Image.new("RGB", (40, 50)))


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK", "P", "RGBA", "LA", "I;16", "1"])
def test_a_large_image_is_loaded_at_half_its_size(kind: str, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if (kind, mode) == ("PNG", "CMYK") or (kind == "JPEG" and mode not in ("RGB", "L", "CMYK")):
        return
    image = Image.linear_gradient("L").resize((60, 41)).convert("RGB").convert(mode if mode != "I;16" else "L")
    image = Image.fromarray(np.asarray(image).astype(np.uint16) * 257) if mode == "I;16" else image
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    buffer = io.BytesIO()
    image.save(buffer, kind, exif=exif)
    whole = load_image(buffer.getvalue())
    monkeypatch.setattr("sightline.data.images.MAX_LOADED", 1000)
    monkeypatch.setattr("sightline.data.images.TILE", 16)
    half = load_image(buffer.getvalue())
    assert (whole.size, half.size, half.info[ORIGINAL]) == ((41, 60), (21, 30), (41, 60))
    stored = whole.transpose(Image.Transpose.ROTATE_90).reduce(2)
    difference = np.asarray(half, dtype=int) - np.asarray(stored.transpose(Image.Transpose.ROTATE_270), dtype=int)
    assert abs(difference).max() <= (0 if kind == "PNG" else 4)


def progressive(size: tuple[int, int], **options: object) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", size).save(buffer, "JPEG", progressive=True, **options)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("data", "bytes_per_pixel"),
    [
        (encode("PNG", (400, 300)), 4),
        (encode("PNG", (400, 300), "L"), 1),
        (encode("JPEG", (400, 300)), 4),
        (encode("WEBP", (400, 300)), 16),
        (encode("TIFF", (400, 300)), 4),
        (progressive((400, 300)), 4 + 3),
        (progressive((400, 300), subsampling=0), 4 + 6),
    ],
)
def test_memory_is_known_before_decoding(data: bytes, bytes_per_pixel: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with Image.open(io.BytesIO(data)) as image:
        assert decoding_bytes(image, 400 * 300) / (400 * 300) == pytest.approx(bytes_per_pixel, abs=0.1)
    monkeypatch.setattr("sightline.data.images.MAX_BYTES", (bytes_per_pixel + 4) * 400 * 300)  # with the result
    with pytest.raises(ImageError, match=r"^x: .*300x400"):
        load_image(data, "x")
    monkeypatch.setattr("sightline.data.images.MAX_BYTES", int((bytes_per_pixel + 4.2) * 400 * 300))
    assert load_image(data).size == (400, 300)


def test_what_must_keep_its_size_has_a_lower_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ImageError, match=r"^x: 30x40 "):
        load_image(encode("PNG"), "x", most=1000)


def test_too_many_pixels() -> None:
    side = int(MAX_PIXELS**0.5) + 1
    data = encode("PNG", (side, side), "1")
    tracemalloc.start()
    with pytest.raises(ImageError, match=rf"^big\.png: {side}x{side} "):
        load_image(data, "big.png")
    assert tracemalloc.get_traced_memory()[1] < 10**7
    tracemalloc.stop()


@pytest.mark.parametrize("kind", FORMATS)
def test_damaged_bytes(kind: str) -> None:
    """An image, or one error."""
    rng, whole = random.Random(0), encode(kind)
    for _ in range(60):
        data = bytearray(whole)
        for _ in range(rng.choice((1, 3, 20))):
            data[rng.randrange(min(len(data), rng.choice((64, 10**6))))] = rng.choice((0, 255, rng.randrange(256)))
        kept = rng.choice((len(data), rng.randrange(len(data))))
        message = _message(bytes(data[:kept]))
        assert message == "" or message.startswith("x: ")
        assert "\n" not in message


def _message(data: bytes) -> str:
    """Why an image cannot be read; "" if it can."""
    try:
        load_image(data, "x")
    except ImageError as error:
        return str(error)
    return ""
