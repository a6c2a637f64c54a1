"""ListOps: answers recomputed by a parser of its own, the published distribution, and the published files."""

import statistics
from collections import Counter
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from sightline.tasks.sequences import listops
from sightline.tasks.sequences.files import read_listops
from sightline.util.errors import FileError

COUNT = 600


@pytest.fixture(scope="module")
def made() -> listops.TokenSet:
    return listops.generate(COUNT, seed=3)


def words(tokens: listops.TokenSet, index: int) -> list[str]:
    return [listops.SYMBOLS[v] for v in tokens.values[tokens.ends[index] : tokens.ends[index + 1]]]


def evaluate(expression: str) -> tuple[int, int, list[int]]:
    """The value by a stack, the depth of the deepest operator, and the numbers of arguments."""
    stack: list[tuple[str, list[int]]] = [("", [])]
    deepest, arguments = 0, []
    for word in expression.split():
        if word.startswith("["):
            stack.append((word[1:], []))
            deepest = max(deepest, len(stack) - 1)
        elif word == "]":
            operator, values = stack.pop()
            arguments.append(len(values))
            result = {
                "MIN": lambda v: min(v),
                "MAX": lambda v: max(v),
                "MED": lambda v: int(statistics.median(v)),
                "SM": lambda v: sum(v) % 10,
            }[operator](values)
            stack[-1][1].append(result)
        else:
            stack[-1][1].append(int(word))
    ((_, (value,)),) = stack
    return value, deepest, arguments


def test_answers_are_those_of_a_parser(made: listops.TokenSet) -> None:
    assert len(made) == COUNT
    for index in range(COUNT):
        assert evaluate(" ".join(words(made, index)))[0] == made.labels[index]


def test_the_parser_can_tell() -> None:
    assert evaluate("[MAX 4 3 [MIN 2 3 ] 1 0 [MED 1 5 8 9 2 ] ]")[0] == 5
    assert evaluate("[MED 3 4 ]")[0] == 3
    assert evaluate("[SM 9 [SM 8 8 ] 7 ]")[0] == 2


def test_shapes_are_the_published_ones(made: listops.TokenSet) -> None:
    assert 500 < made.lengths.min() <= made.lengths.max() < 2000
    found = [evaluate(" ".join(words(made, index))) for index in range(COUNT)]
    depths = Counter(depth for _, depth, _ in found)
    assert max(depths) == 9  # operators to depth 9, digits to depth 10
    arguments = Counter(number for *_, numbers in found for number in numbers)
    assert set(arguments) == set(range(2, 11))
    symbols = np.bincount(made.values, minlength=15) / len(made.values)
    assert symbols[:10] == pytest.approx(symbols[:10].mean(), rel=0.03)
    assert symbols[10:14] == pytest.approx(symbols[10:14].mean(), rel=0.03)
    assert symbols[14] == pytest.approx(symbols[10:14].sum())


def test_trees_grow_as_one_draws_them_by_hand() -> None:
    """Mean size and share of kept trees against a recursion of one node at a time."""
    rng = np.random.default_rng(0)

    def size(depth: int) -> int:
        if depth >= listops.MAX_DEPTH or rng.random() > 0.25:
            return 1
        return 2 + sum(size(depth + 1) for _ in range(rng.integers(2, 11)))

    drawn = np.array([size(1) for _ in range(6000)])
    kept = np.mean((drawn > 500) & (drawn < 2000))
    trees = 40_000
    levels = listops.grow(np.random.default_rng(1), trees)
    share = len(levels[0].tree) / trees
    error = (kept * (1 - kept) * (1 / 6000 + 1 / trees)) ** 0.5
    assert abs(share - kept) < 4 * error
    lengths = listops.write(levels)[1]
    middle = drawn[(drawn > 500) & (drawn < 2000)]
    assert abs(lengths.mean() - middle.mean()) < 4 * middle.std() * (1 / len(middle) + 1 / len(lengths)) ** 0.5


def test_the_seed_decides(made: listops.TokenSet) -> None:
    again, other = listops.generate(COUNT, seed=3), listops.generate(COUNT, seed=4)
    assert again.values.tobytes() == made.values.tobytes()
    assert sha256(made.values.tobytes()).hexdigest()[:16] == "23a1403a102bcf85"  # else data.VERSIONS must change
    assert (again.labels == made.labels).all()
    assert other.values.tobytes() != made.values.tobytes()
    fewer = listops.generate(50, seed=3)
    assert fewer.values.tobytes() == made.part(0, 50).values.tobytes()


def test_every_example_is_different_and_every_answer_comes(made: listops.TokenSet) -> None:
    assert len({tuple(words(made, index)) for index in range(COUNT)}) == COUNT
    assert (np.bincount(made.labels, minlength=10) > 0.02 * COUNT).all()


def test_published_files(tmp_path: Path, made: listops.TokenSet) -> None:
    path = tmp_path / "basic_train.tsv"
    bracketed = "( ( ( [MAX 4 ) ( ( ( [MIN 2 ) 3 ) ] ) ) ] )"
    plain = " ".join(words(made, 0))
    path.write_text(f"Source\tTarget\n{bracketed}\t4\n{plain}\t{made.labels[0]}\n\t3\n")
    found = read_listops(path, 2000)
    assert " ".join(words(found, 0)) == "[MAX 4 [MIN 2 3 ] ]"
    assert words(found, 1) == words(made, 0)
    assert found.lengths.tolist() == [7, made.lengths[0], 0]
    assert found.labels.tolist() == [4, made.labels[0], 3]
    short = read_listops(path, 100)
    assert (short.cut, short.lengths.tolist()) == (1, [7, 100, 0])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "first line"),
        ("\udcff\udcfe\x00", "first line"),
        ("Source\tTarget\n[MIN 2 ]\t11\n", "line 2: the label '11'"),
        ("Source\tTarget\n[MIN 2 ]\n", "line 2: the label ''"),
        ("Source\tTarget\n[MAN 2 ]\t1\n", "'\\[MAN' is not a token"),
        ("Source\tTarget\n1\t1\n2\t[MIN\n", "line 3"),
    ],
)
def test_bad_files(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "basic_val.tsv"
    path.write_text(text, encoding="utf-8", errors="surrogateescape")
    with pytest.raises(FileError, match=message):
        read_listops(path, 2000)
