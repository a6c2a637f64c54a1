"""First calls in a fresh process, and batches that must not change an image."""

from subprocess import CompletedProcess

import pytest
import torch
from torch import Tensor

from sightline.bench import cold_start
from sightline.bench.cases import parse_shape
from sightline.bench.cold_start import ColdStart, run_process
from sightline.ops import inline
from sightline.util.errors import RunError

CPU = torch.device("cpu")
SHAPES = [parse_shape(text) for text in ("2,2,8,1+3x4", "2,2,8,1+5x6", "2,2,8,1+4x7")]


@pytest.mark.slow
def test_first_calls_in_a_fresh_process() -> None:
    findings = run_process(
        "inline",
        "forward",
        "float32",
        "cpu",
        *(f"{name}={case}" for name, case in zip("abc", SHAPES, strict=True)),
    )
    names = ["first call", "new size b", "new size c", "kernels compiled for new sizes", "graphs compiled"]
    assert [item.name for item in findings] == [f"inline forward float32: {name}" for name in names]
    assert findings[0].value > 0
    assert findings[-2].value == 0
    assert findings[-1].value <= 2


def test_first_calls_with_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cold_start, "_count_graphs", len)
    findings = cold_start.first_calls("inline", "forward+backward", "float32", CPU, SHAPES)
    assert [item.unit for item in findings] == ["s", "ms", "ms", "kernels", "graphs"]
    assert [item.value for item in findings[-2:]] == [0, 3]


def test_the_failure_of_a_process_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = CompletedProcess([], 1, "", "Traceback\nInputError: no mechanism\n")
    monkeypatch.setattr("subprocess.run", lambda *args, **kwargs: failed)
    with pytest.raises(RunError, match=r"inlne .*: InputError: no mechanism"):
        run_process("inlne", "forward", "float32", "cpu")
    (finding,) = ColdStart("inlne", "float32", SHAPES).run(CPU)
    assert finding.unit == "failure"
    assert "no mechanism" in finding.note


def test_composition_finds_images_that_depend_on_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    case = parse_shape("3,2,8,1+3x4")
    finding = ColdStart("inline", "float32").composition(case, CPU)
    assert (finding.value, finding.unit, finding.limit) == (0, "of 5", 0)
    definition = inline.reference.inline_attention

    def leaky(q: Tensor, *args: object, **kwargs: object) -> Tensor:
        return definition(q, *args, **kwargs) + q.mean() * 1e-3  # type: ignore[arg-type]

    monkeypatch.setitem(inline.IMPLEMENTATIONS, "torch", leaky)
    finding = ColdStart("inline", "float32").composition(case, CPU)
    assert finding.value >= 4
