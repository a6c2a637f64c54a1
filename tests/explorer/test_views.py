"""What is inside a model, against its definition."""

import base64
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sightline.analysis.capture import BlockCall, capture
from sightline.analysis.confusions import Thresholds, count_confusions
from sightline.analysis.maps import roll_up
from sightline.engine.study_models import random_model
from sightline.explorer import views
from sightline.explorer.factored import keep_factors
from sightline.explorer.inside import (
    SCORES,
    Compared,
    compared_heads,
    confused_pairs,
    confused_shares,
    confused_with,
    has_local,
    local_matrix,
    local_row,
)
from sightline.explorer.views import View
from sightline.util.errors import InputError

from .small import ARGS

PYRAMID = {"depths": (1, 1, 1, 1), "embed_dims": 16, "num_heads": (2, 2, 2, 2), "num_classes": 6}
PYRAMIDS = ("inline_pvt_tiny", "inline_swin_tiny", "inline_cswin_tiny")


def view(attention: str | None = None, name: str = "inline_deit_tiny", size: int = 64) -> View:
    args = (
        ARGS
        if "deit" in name
        else {"depths": (1, 1, 1, 1), "embed_dims": 16, "num_heads": (2, 2, 2, 2), "num_classes": 6}
    )
    model = random_model(name, args, attention, 0)
    image = torch.randn(3, size, size + 16, generator=torch.Generator().manual_seed(1))
    return View(model, image, keep_factors())


def unpacked(answer: dict[str, Any]) -> Tensor:
    numbers = np.frombuffer(base64.b64decode(answer["weights"]), np.int8).reshape(answer["heads"], -1)
    return torch.tensor(numbers) * torch.tensor(answer["scale"])[:, None]


@pytest.mark.parametrize("attention", ["softmax", "inline", "linear", "soft", "hydra", "performer"])
def test_rows(attention: str) -> None:
    found = view(attention)
    for index, block in enumerate(capture(found.network, found.image)):
        rows = block.rows(range(block.tokens))
        assert found.facts()["blocks"][index]["heads"] == len(rows)
        for query, token in ((0, 1), (13, 14), ("class", 0)):
            answer = found.row(index, query)  # type: ignore[arg-type]
            expected = rows[:, token]
            step = torch.tensor(answer["scale"])[:, None]
            assert answer["grid"] == [4, 5]
            assert ((unpacked(answer) - expected[:, 1:]).abs() <= 0.51 * step + 1e-7).all()
            assert torch.allclose(torch.tensor(answer["prefix"]), expected[:, :1], atol=1e-5)
            assert torch.allclose(torch.tensor(answer["sum"]), expected.sum(1), atol=1e-4)
            assert torch.allclose(torch.tensor(answer["min"]), expected[:, 1:].amin(1), atol=1e-5)


@pytest.mark.parametrize("name", PYRAMIDS)
@pytest.mark.parametrize("attention", ["inline", "softmax"])
def test_rows_of_windows_and_reduced_maps(name: str, attention: str) -> None:
    found = view(attention, name)
    for index, block in enumerate(capture(found.network, found.image)):
        answer = found.row(index, 1)
        assert answer["grid"] == list(block.key_grid)
        expected = block.rows([block.prefix + 1])[:, 0, block.prefix :]
        assert torch.allclose(unpacked(answer), expected, atol=float(expected.abs().max()) / 250)


def test_forward_and_prediction_by_block() -> None:
    found = view("inline")
    facts = found.facts()
    with torch.no_grad():
        logits = found.network(found.image[None])[0]
        first = found.network.forward_intermediates(found.image[None], [0], norm=True, return_prefix_tokens=True)
    assert torch.allclose(found.logits, logits, atol=1e-5)
    shares, order = logits.softmax(-1).sort(descending=True)
    assert [item["label"] for item in facts["top"]] == [f"class {i}" for i in order[:5].tolist()]
    assert [item["p"] for item in facts["top"]] == pytest.approx(shares[:5].tolist(), abs=1e-5)
    assert facts["by_block"][-1] == facts["top"][:3]
    token = first[1][0][1][:, 0]  # type: ignore[index]
    expected = found.network.head(token).softmax(-1)[0].max().item()
    assert facts["by_block"][0][0]["p"] == pytest.approx(expected, abs=1e-5)
    assert facts["classes_known"] is False


def test_prediction_needs_the_width_of_the_classifier() -> None:
    by_block = view("inline", "inline_pvt_tiny").by_block
    assert by_block[:3] == [None] * 3
    assert by_block[3] is not None


@pytest.mark.parametrize(
    ("attention", "name"),
    [("inline", "inline_deit_tiny"), ("soft", "inline_pvt_tiny"), ("focused", "inline_swin_tiny")],
)
def test_local_terms(attention: str, name: str) -> None:
    """Weights times values are what the mechanism adds, in the mean over channels that share their values."""
    for block in view(attention, name).blocks[:2]:
        matrix = local_matrix(block)
        assert has_local(block)
        for token in (block.prefix, block.tokens - 1):
            assert torch.allclose(local_row(block, token), matrix[:, token], atol=1e-6)
        assert not matrix[:, : block.prefix].any()
        (part,) = block.parts
        values = torch.randn(1, part.v.shape[1], part.core.num_heads, 1).expand(part.v.shape).clone()
        with torch.no_grad():
            term = part.core.local_term(values, part.place)
            still = part.core.local_term(torch.zeros_like(values), part.place)
        assert term is not None
        assert still is not None
        expected = (term - still)[0].mean(-1).t()  # H N
        mixed = torch.einsum("hnm,mh->hn", matrix, values[0, block.prefix :, :, 0])
        assert torch.allclose(mixed, expected, atol=1e-5)


def test_no_local_term() -> None:
    found = view("softmax")
    assert not found.facts()["blocks"][0]["local"]
    with pytest.raises(InputError, match="local"):
        found.local(0, 0)


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("attention", ["softmax", "inline", "soft"])
def test_rollout(attention: str, kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "WHOLE", 20 if kept else 19)
    found = view(attention)
    blocks = capture(found.network, found.image)
    assert found.rolled == {"grid": [4, 5], "from": 0, "to": 1}
    for query, where in ((7, (1.5 / 4, 2.5 / 5)), ("class", None)):
        answer = found.rollout(query)  # type: ignore[arg-type]
        expected = by_matrices(blocks, 0 if where is None else 8)
        assert torch.allclose(unpacked(answer)[0], expected[1:], atol=float(expected.abs().max()) / 200)
        assert torch.allclose(roll_up(blocks, where).weights.flatten(), expected[1:], atol=1e-6)


def by_matrices(blocks: list[BlockCall], token: int) -> Tensor:
    share = torch.eye(blocks[0].tokens)[token]
    for block in reversed(blocks):
        share = 0.5 * share + 0.5 * share @ block.rows(range(block.tokens)).mean(0)
    return share


@pytest.mark.parametrize("attention", ["linear", "inline", "hydra"])
def test_confusions(attention: str) -> None:
    block = view(attention).blocks[1]
    heads = compared_heads(block)
    for centred, kind in ((False, "confused"), (True, "centred")):
        pairs = torch.stack([confused_pairs(block, Compared(head, centred)) for head in range(heads)])
        for index, score in enumerate(SCORES):
            (counts,) = count_confusions([block], Thresholds(0.5, score))
            assert int((pairs <= index).sum()) == 2 * getattr(counts, kind)
            shares = [confused_shares(block, Compared(head, centred))[index] for head in range(heads)]
            assert all(0 <= share <= 1 for share in shares)
            for token in (1, 9):
                same = confused_with(block, token, Compared(0, centred), score)
                assert same == torch.where(pairs[0, token - 1] <= index)[0].tolist()


@pytest.mark.parametrize("attention", ["linear", "inline"])
def test_kept_confusions_are_the_same(attention: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = view(attention)
    asked = [(head, query, centred) for head in (0, None) for query in (0, 8, "class") for centred in (False, True)]
    answers = []
    for most in (19, 20):
        monkeypatch.setattr(views, "WHOLE", most)
        answers.append([found.confusion(1, *each, score)["same"] for each in asked for score in SCORES])  # type: ignore[arg-type]
    assert answers[0] == answers[1]
    assert any(answers[0])


def test_linear_attention_confuses_multiples() -> None:
    """Queries that differ by a factor only get the same attention from linear attention, not from InLine's."""
    for name, same in (("linear", [1]), ("inline", [])):
        block = view(name).blocks[0]
        (part,) = block.parts
        part.q[0, 1:] = 10 * torch.randn(part.q[0, 1:].shape, generator=torch.Generator().manual_seed(0))
        part.q[0, 2] = 3 * part.q[0, 1]
        part.k.normal_(generator=torch.Generator().manual_seed(1))
        assert confused_with(block, 1, Compared(0, False), 0.01) == same, name


@pytest.mark.parametrize(("block", "query"), [(2, 0), (-1, 0), (0, 20), (0, -1)])
def test_out_of_range(block: int, query: int) -> None:
    found = view("inline")
    name = "query" if block == 0 else "block"
    for ask in (found.row, found.local):
        with pytest.raises(InputError, match=name):
            ask(block, query)


def test_no_class_token() -> None:
    found = view("inline", "inline_swin_tiny")
    with pytest.raises(InputError, match="class token"):
        found.row(0, "class")
    with pytest.raises(InputError, match="class token"):
        found.rollout("class")


def test_no_matrix() -> None:
    found = view("ttt")
    assert found.facts()["blocks"][0]["rows"] is False
    assert found.facts()["rollout"] is None
    for ask in (lambda: found.row(0, 0), lambda: found.confusion(0, None, 0, False, 0.1), lambda: found.rollout(0)):
        with pytest.raises(InputError, match="matrix"):
            ask()
