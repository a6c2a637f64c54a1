"""Maps as studies: views, animations, rollout."""

import io
from typing import Any

import pytest
import torch
from PIL import Image

from sightline.analysis.capture import capture
from sightline.analysis.map_study import study_maps
from sightline.analysis.maps import last_run, roll_up
from sightline.analysis.study import Subject

from ..models.tiny import every_family, image, tiny

SHOWN = Image.new("RGB", (80, 64))


def subject(attention: str = "inline", **options: object) -> Subject:
    return Subject(attention, tiny("deit", attention=attention, **options), [image(64, 80, batch=1)[0]])


def test_layers_of_several_mechanisms() -> None:
    study = study_maps([subject("softmax"), subject("linear")], SHOWN, "a.png", ((0.5, 0.5), None))
    assert list(study.figures) == ["maps-1", "maps-2"]
    assert len(study.facts["maps"]) == 2 * 2 * 3
    first = study.facts["maps"][0]
    weights = torch.tensor(first["weights"]).sum((1, 2)) + torch.tensor(first["prefix"]).sum(1)
    torch.testing.assert_close(weights, torch.ones(2))
    assert (first["place"], first["grid"], first["query"]) == ((2, 2), (4, 5), [0.5, 0.5])
    assert study.facts["maps"][6]["query"] == "class"


def test_heads_and_chosen_layers() -> None:
    one = subject()
    study = study_maps([one], SHOWN, "a.png", view="heads", layers=(0, -1), heads=(1,))
    assert [fact["block"] for fact in study.facts["maps"]] == ["blocks.0 head 1", "blocks.2 head 1"]
    whole = study_maps([one], SHOWN, "a.png")
    assert study.facts["maps"][1]["weights"][0] == whole.facts["maps"][2]["weights"][1]


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"layers": (3,)}, "no layer 3; its layers are 0 to 2"),
        ({"layers": (-4,)}, "no layer -4"),
        ({"heads": (2,)}, "no head 2; its heads are 0 to 1"),
        ({"view": "heads", "heads": (-1,)}, "no head -1"),
    ],
)
def test_what_there_is_not(choice: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        study_maps([subject()], SHOWN, "a.png", **choice)


def test_no_class_token() -> None:
    one = Subject("pvt", tiny("pvt"), [image(64, batch=1)[0]])
    with pytest.raises(ValueError, match="no class token"):
        study_maps([one], SHOWN, "a.png", (None,))


@pytest.mark.slow
@pytest.mark.parametrize(("animate", "frames"), [("layers", 3), ("queries", 4)])
def test_animations(animate: str, frames: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sightline.analysis.map_study.SIDE", 2)
    study = study_maps([subject()], SHOWN, "a.png", animate=animate)
    with Image.open(io.BytesIO(study.animations[f"maps-{animate}"])) as picture:
        assert (picture.format, getattr(picture, "n_frames", 1)) == ("GIF", frames)


@pytest.mark.parametrize("attention", ["softmax", "inline", "linear"])
@torch.no_grad()
def test_rollout_is_the_product_of_the_matrices(attention: str) -> None:
    one = subject(attention)
    blocks = capture(one.model, one.images[0])
    product = torch.eye(21)
    for block in blocks:
        product = (0.5 * torch.eye(21) + 0.5 * block.rows(torch.arange(21)).mean(0)) @ product
    for query, token in (((0.0, 0.0), 1), ((0.99, 0.99), 20), (None, 0)):
        found = roll_up(blocks, query)
        torch.testing.assert_close(
            torch.cat([found.prefix[0], found.weights[0].flatten()]), product[token], rtol=1e-4, atol=1e-6
        )


@every_family
@torch.no_grad()
def test_rollout_keeps_to_one_map(family: str) -> None:
    blocks = capture(tiny(family, depths=3 if family == "deit" else (1, 2, 1, 1)), image(64, 80, batch=1)[0])
    run = last_run(blocks)
    assert len({(block.grid, block.prefix) for block in run}) == 1
    assert tuple(roll_up(blocks, (0.5, 0.5)).weights.shape[1:]) == run[-1].grid


@torch.no_grad()
def test_reduced_maps_cannot_be_rolled_up() -> None:
    blocks = capture(tiny("pvt", attention="softmax"), image(64, 80, batch=1)[0])
    reduced = [block for block in blocks if block.key_grid != block.grid][:1]
    with pytest.raises(ValueError, match="reduced map"):
        roll_up(reduced, (0.5, 0.5))
