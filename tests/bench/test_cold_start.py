"""First calls in a fresh process, and batches that must not change an image."""

import pytest
import torch
from torch import Tensor

from sightline.bench.cases import parse_shape
from sightline.bench.cold_start import composition, first_calls
from sightline.ops import inline
from sightline.util.errors import RunError

CPU = torch.device("cpu")
SHAPES = [parse_shape(text) for text in ("2,2,8,1+3x4", "2,2,8,1+5x6", "2,2,8,1+4x7")]


@pytest.mark.slow
def test_the_failure_of_a_process_is_reported() -> None:
    with pytest.raises(RunError, match=r"first calls of inlne failed: .*no mechanism"):
        first_calls("inlne", "forward", "float32", CPU, SHAPES)


def test_composition_finds_images_that_depend_on_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    case = parse_shape("3,2,8,1+3x4")
    (finding,) = composition("inline", case, "float32", CPU)
    assert (finding.value, finding.unit, finding.limit) == (0, "of 5", 0)
    definition = inline.reference.inline_attention

    def leaky(q: Tensor, *args: object, **kwargs: object) -> Tensor:
        return definition(q, *args, **kwargs) + q.mean() * 1e-3  # type: ignore[arg-type]

    monkeypatch.setitem(inline.IMPLEMENTATIONS, "torch", leaky)
    (finding,) = composition("inline", case, "float32", CPU)
    assert finding.value >= 4
