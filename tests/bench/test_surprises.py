"""First calls in a fresh process, and batches that must not change an image."""

import pytest
import torch
from torch import Tensor

from sightline.bench.cases import parse_shape
from sightline.bench.cold_start import composition, first_calls
from sightline.ops import inline

CPU = torch.device("cpu")
SHAPES = [parse_shape(text) for text in ("2,2,8,1+3x4", "2,2,8,1+5x6", "2,2,8,1+4x7")]


def test_a_process_that_fails_says_why() -> None:
    with pytest.raises(ValueError, match=r"first calls of inlne failed: .*no mechanism"):
        first_calls("inlne", "forward", "float32", CPU, SHAPES)


def test_composition_finds_images_that_see_their_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    case = parse_shape("3,2,8,1+3x4")
    (finding,) = composition("inline", case, "float32", CPU)
    assert (finding.value, finding.unit, finding.limit) == (0, "of 5", 0)
    definition = inline.reference.inline_attention

    def nosy(q: Tensor, *args: object, **kwargs: object) -> Tensor:
        return definition(q, *args, **kwargs) + q.mean() * 1e-3  # type: ignore[arg-type]

    monkeypatch.setitem(inline.IMPLEMENTATIONS, "torch", nosy)
    (finding,) = composition("inline", case, "float32", CPU)
    assert finding.value >= 4
