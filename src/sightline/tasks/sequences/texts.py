"""Text and Retrieval as bytes: IMDb from its raw folder, and the pairs of the ACL Anthology Network as published."""

from codecs import BOM_UTF8
from pathlib import Path

from sightline.tasks.sequences.tokens import TokenSet
from sightline.util.errors import FileError

REVIEWS = ("neg", "pos")
PAIRS = ("unrelated", "related")


def read_imdb(folder: Path, split: str, length: int) -> TokenSet:
    """The reviews in `folder`/train or /test, one per file in neg/ and pos/; unlabeled ones are ignored."""
    sequences, labels = [], []
    for label, name in enumerate(REVIEWS):
        source = folder / split / name
        files = sorted(source.glob("*.txt")) if source.is_dir() else []
        if not files:
            raise FileError(
                f"{source}: no reviews; give the folder aclImdb, which has train/ and test/ of neg/ and pos/"
            )
        for path in files:
            with path.open("rb") as file:
                sequences.append(file.read(length + 1))  # one more, so that a longer one is known to be cut
            labels.append(label)
    return TokenSet.pack(sequences, labels, length)


def read_pairs(path: Path, length: int) -> TokenSet:
    """A file such as new_aan_pairs.train.tsv: label, two names and two texts per line, separated by tabs.

    Empty lines are left alone.
    """
    sequences, labels = [], []
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            line = (line.removeprefix(BOM_UTF8) if number == 1 else line).rstrip(b"\r\n")
            if not line:
                continue
            fields = line.split(b"\t")
            if len(fields) != 5:
                raise FileError(f"{path}, line {number}: {len(fields)} fields; expected label, two names, two texts")
            if fields[0] not in (b"0", b"1", b"0.0", b"1.0"):
                raise FileError(f"{path}, line {number}: the label {fields[0][:20]!r} is neither 0 nor 1")
            sequences += [text[: length + 1] for text in fields[3:]]
            labels.append(int(fields[0][:1]))
    if not labels:
        raise FileError(f"{path}: empty; download it again")
    return TokenSet.pack(sequences, labels, length, towers=2)
