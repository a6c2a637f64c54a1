"""The encoder of sequences: sizes, padding, towers, and what it rejects."""

import pytest
import torch
from torch import Tensor

from sightline import backend
from sightline.layers import MECHANISMS
from sightline.models.sequence import SEQUENCE_MODELS, SequenceEncoder, create_sequence_model

from .tiny import assert_close, relative_error


def encoder(**options: object) -> SequenceEncoder:
    torch.manual_seed(0)
    made = SequenceEncoder(**{"num_tokens": 9, "max_length": 32, "num_classes": 3, "embed_dim": 16, **options})  # type: ignore[arg-type]
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return made.double().eval()


def ids(*sizes: int, length: int) -> Tensor:
    rows = torch.zeros(len(sizes), length, dtype=torch.long)
    for i, size in enumerate(sizes):
        rows[i, :size] = torch.randint(1, 10, (size,), generator=torch.Generator().manual_seed(size))
    return rows


@pytest.mark.slow
@pytest.mark.parametrize("pool", ["avg", "max", "token"])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_padding_changes_nothing(mechanism: str, pool: str) -> None:
    model = encoder(attention=mechanism, global_pool=pool)
    sizes = (3, 17, 1)
    together = model(ids(*sizes, length=30))
    for row, size in zip(together, sizes, strict=True):
        assert_close(row, model(ids(size, length=size))[0], 1e-8)
        assert_close(row, model(ids(size, length=32))[0], 1e-8)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_what_padding_is_embedded_as_does_not_matter(mechanism: str) -> None:
    model, x = encoder(attention=mechanism), ids(5, 20, length=24)
    before = model(x)
    with torch.no_grad():
        model.embed.weight[0] = 40.0
    assert_close(model(x), before, 1e-8)


@pytest.mark.parametrize("pool", ["avg", "max", "token"])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_empty_and_single_sequences(mechanism: str, pool: str) -> None:
    model = encoder(attention=mechanism, global_pool=pool)
    empty = model(torch.zeros(2, 0, dtype=torch.long))
    assert empty.shape == (2, 3)
    assert empty.isfinite().all()
    assert_close(model(ids(0, 1, length=7))[0], empty[0], 1e-8)
    assert model(ids(1, length=1)).isfinite().all()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_every_parameter_learns(mechanism: str) -> None:
    model = encoder(attention=mechanism, global_pool="token", towers=2).float().train()
    model(torch.stack([ids(4, 9, length=12), ids(12, 2, length=12)], 1)).square().sum().backward()
    for name, parameter in model.named_parameters():
        if mechanism != "none":
            assert parameter.grad is not None, name
        assert parameter.grad is None or parameter.grad.isfinite().all(), name


def test_two_towers_share_their_encoder() -> None:
    model = encoder(towers=2)
    a, b = ids(6, length=9), ids(9, length=9)
    one, other = model.encode(a), model.encode(b)
    expected = model.head(torch.cat([one, other, one * other, one - other], -1))
    assert_close(model(torch.stack([a, b], 1)), expected, 1e-9)
    assert relative_error(model(torch.stack([b, a], 1)), expected) > 1e-3


def test_order_matters() -> None:
    model, x = encoder(), ids(12, length=12)
    assert relative_error(model(x.flip(1)), model(x)) > 1e-3


def test_without_a_mask_every_place_counts() -> None:
    model, x = encoder(masked=False), ids(8, length=8)
    assert_close(model(x), encoder()(x), 1e-9)
    longer = torch.nn.functional.pad(x, (0, 4))
    assert relative_error(model(longer), model(x)) > 1e-3


def test_checkpointing_gives_the_same_gradients() -> None:
    model, x = encoder(attention="inline,softmax"), ids(5, 9, length=9)
    gradients = []
    for enable in (False, True):
        model.set_grad_checkpointing(enable)
        model.train().zero_grad()
        model(x).square().sum().backward()
        gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    for a, b in zip(*gradients, strict=True):
        assert_close(a, b, 1e-9)


def test_compiled_training_with_the_gradient_of_tokens_as_a_product(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, autocast to bfloat16: every gradient is that of eager mode."""
    model, x = encoder(depth=1, masked=False).float(), ids(30, 17, length=32)
    looked_up: list[int] = []

    def on_a_gpu(table: Tensor, tokens: Tensor) -> bool:
        looked_up.append(table.shape[0])
        return True

    found = []
    for compiled in (False, True):
        if compiled:
            monkeypatch.setattr(backend, "lookup_product", on_a_gpu)
            torch._dynamo.reset()
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            out = (torch.compile(model, backend="aot_eager", fullgraph=True) if compiled else model)(x)
        out.float().square().sum().backward()
        found.append({name: value.grad for name, value in model.named_parameters()})
    assert looked_up == [10]
    for name, grad in found[0].items():
        assert relative_error(found[1][name], grad) < 1e-2, name


@pytest.mark.parametrize("name", SEQUENCE_MODELS)
def test_published_sizes(name: str) -> None:
    model = create_sequence_model(name)
    block = model.blocks[0]
    assert (len(model.blocks), model.embed.embedding_dim, block.attn.core.num_heads) == (2, 64, 2)
    assert block.mlp.fc1.out_features == model.head[0].out_features == 128
    assert model.max_length == {"lra_listops": 2048, "lra_image": 1024, "lra_pathfinder": 1024}.get(name, 4096)
    assert model.num_classes == (10 if name in ("lra_listops", "lra_image") else 2)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"attention": "sofmax"}, "did you mean 'softmax'"),
        ({"global_pool": "mean"}, "global_pool"),
        ({"towers": 3}, "towers"),
        ({"max_length": 0}, "max_length"),
        ({"num_heads": 3}, "num_heads"),
        ({"embed_dim": 0}, "embed_dim"),
        ({"mlp_ratio": 0}, "mlp_ratio"),
        ({"mlp_ratio": "x"}, "mlp_ratio"),
        ({"width": 3}, "width"),
    ],
)
def test_wrong_arguments(options: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        create_sequence_model("lra_text", **options)


def test_wrong_names_and_shapes() -> None:
    with pytest.raises(ValueError, match="did you mean 'lra_listops'"):
        create_sequence_model("lra_listop")
    with pytest.raises(ValueError, match="33 tokens"):
        encoder()(ids(33, length=33))
    with pytest.raises(ValueError, match="batch, 2, tokens"):
        encoder(towers=2)(ids(3, length=3))


@pytest.mark.parametrize("invalid", [torch.tensor([[1, 16]]), torch.tensor([[-1, 2]]), torch.ones(1, 2)])
def test_invalid_ids_are_rejected(invalid: torch.Tensor) -> None:
    with pytest.raises((IndexError, RuntimeError)):
        create_sequence_model("lra_listops")(invalid)
