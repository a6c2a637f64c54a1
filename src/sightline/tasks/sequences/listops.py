"""ListOps: expressions of MIN, MAX, MED and SM (sum modulo 10) over digits, whose value is the label.

The distribution is that of the Long Range Arena: a node is an operator of 2 to 10 arguments with probability 1/4, else
a digit; at depth 10 it is a digit; expressions of 501 to 1,999 tokens are kept. Trees grow level by level, thousands at
a time, and are rejected before they are written, so that 100,000 take about a minute.
"""

from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

from sightline.data.order import derive
from sightline.tasks.sequences.tokens import Note, TokenSet, quiet

OPERATORS = ("[MIN", "[MAX", "[MED", "[SM")
SYMBOLS = (*map(str, range(10)), *OPERATORS, "]")  # the tokens, in the order of their numbers
OPERATOR_SHARE, MAX_DEPTH, MAX_ARGUMENTS = 0.25, 10, 10
SHORTEST, LONGEST = 501, 1999
TREES = 20_000  # grown at a time


@dataclass
class Level:
    """The nodes of one depth in all trees, from left to right; children follow the order of their parents.

    Args:
        tree: which tree a node belongs to.
        value: a digit, or 10 to 13 for an operator.
        arguments: children, 0 for a digit.
    """

    tree: np.ndarray
    value: np.ndarray
    arguments: np.ndarray

    def keep(self, trees: np.ndarray) -> "Level":
        """Only the nodes of the trees that are true in `trees`, which are numbered again."""
        chosen, number = trees[self.tree], np.cumsum(trees) - 1
        return Level(number[self.tree[chosen]], self.value[chosen], self.arguments[chosen])


def generate(count: int, seed: int, note: Note = quiet) -> TokenSet:
    """`count` different expressions with their values; the same for a seed on every machine."""
    seen: set[bytes] = set()
    values: list[bytes] = []
    labels: list[int] = []
    number = 0
    while len(values) < count:
        tokens, sizes, answers = write(grow(np.random.default_rng(derive(seed, number)), TREES))
        text, start = tokens.tobytes(), 0
        for size, answer in zip(sizes.tolist(), answers.tolist(), strict=True):
            expression, start = text[start : start + size], start + size
            key = blake2b(expression, digest_size=12).digest()
            if key not in seen:
                seen.add(key)
                values.append(expression)
                labels.append(answer)
        number += 1
        note("listops, examples generated", min(len(values), count), count)
    return TokenSet.pack(values[:count], labels[:count], LONGEST)


def grow(rng: np.random.Generator, trees: int) -> list[Level]:
    """The levels of this many trees, without those whose length is out of range."""
    levels: list[Level] = []
    tree = np.arange(trees)
    length = np.zeros(trees, dtype=np.int64)
    for depth in range(1, MAX_DEPTH + 1):
        operator = (rng.random(len(tree)) <= OPERATOR_SHARE) & (depth < MAX_DEPTH)
        arguments = np.where(operator, rng.integers(2, MAX_ARGUMENTS + 1, len(tree)), 0)
        value = np.where(operator, rng.integers(10, 14, len(tree)), rng.integers(0, 10, len(tree)))
        levels.append(Level(tree, value, arguments))
        length += np.bincount(tree, 1 + operator, minlength=trees).astype(np.int64)
        arguments = np.where(length[tree] <= LONGEST, arguments, 0)  # already too long: it need not grow further
        tree = np.repeat(tree, arguments)
    return [level.keep((length >= SHORTEST) & (length <= LONGEST)) for level in levels]


def write(levels: list[Level]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Concatenated tokens of the trees (total,), their lengths (trees,) and their answers (trees,)."""
    sizes: list[np.ndarray] = []
    size = answer = np.zeros(0, dtype=np.int64)
    for level in reversed(levels):
        size, answer = _fold(level, size, answer)
        sizes.append(size)
    sizes.reverse()
    place = np.cumsum(sizes[0]) - sizes[0]
    tokens = np.empty(int(sizes[0].sum()), dtype=np.uint8)
    for depth, level in enumerate(levels):
        tokens[place] = level.value
        operator = level.arguments > 0
        tokens[(place + sizes[depth] - 1)[operator]] = len(SYMBOLS) - 1
        if depth + 1 < len(levels) and operator.any():
            inner = sizes[depth + 1]
            before = np.cumsum(inner) - inner  # of all nodes to the left at this depth
            first = np.cumsum(level.arguments[operator]) - level.arguments[operator]
            place = before + np.repeat(place[operator] + 1 - before[first], level.arguments[operator])
        else:
            place = np.zeros(0, dtype=np.int64)
    return tokens, sizes[0], answer


def _fold(level: Level, size: np.ndarray, answer: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Tokens and answers of the nodes of a level, from those of their children."""
    operator = level.arguments > 0
    sizes, answers = np.ones(len(level.value), dtype=np.int64), level.value.astype(np.int64)
    if not operator.any():
        return sizes, answers
    counts = level.arguments[operator]
    first = np.cumsum(counts) - counts
    sizes[operator] = 2 + np.add.reduceat(size, first)
    inside = answer[np.lexsort((answer, np.repeat(np.arange(len(counts)), counts)))]  # sorted in every node
    medians = (inside[first + (counts - 1) // 2] + inside[first + counts // 2]) // 2
    choices = (inside[first], inside[first + counts - 1], medians, np.add.reduceat(answer, first) % 10)
    answers[operator] = np.choose(level.value[operator] - 10, choices)
    return sizes, answers
