"""Captured calls: rows of chosen tokens are rows of the whole matrix, in every family and under every mechanism."""

from types import SimpleNamespace

import pytest
import torch
from torch.fx import GraphModule

from sightline.analysis.capture import attention_blocks, capture
from sightline.analysis.figures import telling_maps
from sightline.analysis.maps import attention_maps
from sightline.analysis.masking import Mask, masked
from sightline.analysis.study import telling_blocks
from sightline.engine.pictures import check_attention
from sightline.layers.spec import MECHANISMS
from sightline.util.errors import InputError

from ..models.tiny import every_family, image, tiny


@every_family
@torch.no_grad()
def test_chosen_rows_are_rows_of_the_matrix(family: str) -> None:
    model, x = tiny(family), image(64, 80, batch=1)[0]
    blocks = capture(model, x)
    assert [block.name for block in blocks] == attention_blocks(model)
    for block in blocks:
        matrix = block.rows(torch.arange(block.tokens))  # brute force: every row at once
        assert tuple(matrix.shape[1:]) == (block.tokens, block.keys)
        chosen = torch.tensor([block.tokens - 1, 0, block.tokens // 2])
        torch.testing.assert_close(block.rows(chosen), matrix[:, chosen], rtol=1e-5, atol=1e-7)


@torch.no_grad()
def test_compiled_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Maps of a model that has run compiled, and whose graph knows of no hooks, and the same graph after that."""
    model, x = tiny("deit"), image(64, 80, batch=1)
    expected = [block.rows([5]) for block in capture(model, x[0])]
    graphs: list[object] = []

    def backend(graph: GraphModule, _: object) -> GraphModule:
        graphs.append(graph)
        return graph

    model.compile(backend=backend)
    before = model(x)
    for block, rows in zip(capture(model, x[0]), expected, strict=True):
        torch.testing.assert_close(block.rows([5]), rows, rtol=0, atol=0)
    torch.testing.assert_close(model(x), before, rtol=0, atol=0)
    assert len(graphs) == 1


@pytest.mark.parametrize("mechanism", [name for name, row in MECHANISMS.items() if row.core.has_rows])
@torch.no_grad()
def test_every_mechanism_has_rows(mechanism: str) -> None:
    model = tiny("deit", attention=mechanism)
    for block in capture(model, image(64, 80, batch=1)[0]):
        matrix = block.rows(torch.arange(block.tokens))
        assert matrix.isfinite().all()
        torch.testing.assert_close(block.rows([5])[:, 0], matrix[:, 5], rtol=1e-4, atol=1e-6)


@torch.no_grad()
def test_blocks_without_rows_are_left_out() -> None:
    picture = image(64, 80, batch=1)[0]
    mixed = tiny("deit", attention="ttt*1+inline*2")
    assert [block.name for block in telling_blocks(mixed, picture)] == ["blocks.1.attn", "blocks.2.attn"]
    assert [found.mechanism for found in attention_maps(mixed, picture)] == ["inline", "inline"]
    assert [found.mechanism for found in telling_maps(mixed, picture, (0.5, 0.5))] == ["inline", "inline"]
    whole = tiny("deit", attention="ttt(project=true)")
    for look in (telling_blocks, attention_maps, lambda *args: telling_maps(*args, (0.5, 0.5))):
        with pytest.raises(InputError, match="ttt"):
            look(whole, picture)
    loaded = SimpleNamespace(model=whole, card=SimpleNamespace(title="a model"))
    with pytest.raises(InputError, match="a model"):  # before any image is read
        check_attention(loaded, (0.5, 0.5))
    with pytest.raises(InputError, match="ttt"), masked(mixed, Mask(3)):
        mixed(picture[None])
    with pytest.raises(InputError, match="ttt"):
        attention_maps(mixed, picture, blocks=["blocks.0.attn"])


@pytest.mark.parametrize(("family", "options"), [("swin", {"attention": "softmax"}), ("cswin", {}), ("deit", {})])
@torch.no_grad()
def test_what_is_not_visible_has_no_weight(family: str, options: dict[str, str]) -> None:
    model = tiny(family, **options)
    for block in capture(model, image(64, 80, batch=1)[0]):
        tokens = torch.arange(block.tokens)
        seen, rows = block.visible(tokens), block.rows(tokens)
        heads = len(rows) // len(block.parts)
        assert not rows[~seen.repeat_interleave(heads, 0)].any()
        if options:  # softmax gives every visible key some weight
            assert (rows[seen.repeat_interleave(heads, 0)] > 0).all()


@torch.no_grad()
def test_queries_follow_their_tokens_through_windows() -> None:
    model, x = tiny("swin", attention="softmax", depths=(2, 1, 1, 1)), image(64, 80, batch=1)[0]
    shifted = capture(model, x)[1]
    plain = shifted.parts[0]
    flat = torch.zeros(int(plain.positions.max()) + 1, *plain.q.shape[2:])
    for window, places in enumerate(plain.positions):
        flat[places] = plain.q[window]
    tokens = torch.tensor([0, 7, 100, 319])
    torch.testing.assert_close(shifted.queries(tokens), flat[tokens + 1].transpose(0, 1), rtol=0, atol=0)


def test_an_unknown_block_is_named() -> None:
    with pytest.raises(ValueError, match=r"blocks\.9.*there are blocks\.0"):
        capture(tiny("deit"), image(64, batch=1)[0], ["blocks.9"])
