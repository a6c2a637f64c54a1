"""Rebuild the embedded dataset from Debian's package `dataset-fashion-mnist`.

    apt-get install dataset-fashion-mnist
    python tools/make_embedded.py [/usr/share/datasets/fashion-mnist]

The first TRAIN and TEST images of every class are taken from the training and the test set of Fashion-MNIST, in order
and with unchanged pixels, as PNG files in folders named after their classes. The PNG files are stored uncompressed, so
that xz compresses across images. The result is byte-identical on every run.
"""

import gzip
import io
import lzma
import struct
import sys
import tarfile
import zlib
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).parents[1] / "src/sightline/data/fashion_mnist"
SOURCE = Path("/usr/share/datasets/fashion-mnist")
CLASSES = (
    "T-shirt", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
TRAIN, TEST = 1000, 200  # images per class
DATE = 1503619200  # 25 August 2017, release of the dataset


def read(source: Path, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Images (n, 28, 28) and labels (n,) of `train` or `t10k`."""
    images = gzip.decompress((source / f"{name}-images-idx3-ubyte.gz").read_bytes())
    labels = gzip.decompress((source / f"{name}-labels-idx1-ubyte.gz").read_bytes())
    return np.frombuffer(images, np.uint8, offset=16).reshape(-1, 28, 28), np.frombuffer(labels, np.uint8, offset=8)


def png(image: np.ndarray) -> bytes:
    """A gray image as a PNG file that is not compressed."""
    height, width = image.shape
    rows = np.concatenate([np.zeros((height, 1), np.uint8), image], 1).tobytes()  # no filter
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows, 0)), (b"IEND", b""))
    parts = (struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
             for kind, body in chunks)  # fmt: skip
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def archive(images: np.ndarray, labels: np.ndarray, count: int) -> bytes:
    """The first `count` images of every class as a tar file, folder by folder."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for label, name in enumerate(CLASSES):
            for index in np.flatnonzero(labels == label)[:count]:
                data = png(images[index])
                entry = tarfile.TarInfo(f"{name}/{index:05d}.png")
                entry.size, entry.mtime = len(data), DATE
                tar.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


def main() -> None:
    """Write train.tar.xz and test.tar.xz."""
    source = Path(sys.argv[1]) if len(sys.argv) > 1 else SOURCE
    for split, name, count in (("train", "train", TRAIN), ("test", "t10k", TEST)):
        data = lzma.compress(archive(*read(source, name), count), preset=9 | lzma.PRESET_EXTREME)
        path = FOLDER / f"{split}.tar.xz"
        path.write_bytes(data)
        print(f"{path.name}: {count * len(CLASSES)} images, {len(data):,} bytes")


if __name__ == "__main__":
    main()
