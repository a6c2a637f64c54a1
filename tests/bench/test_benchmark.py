"""`sightline.bench.benchmark`, the function behind `sightline bench`."""

import doctest
from pathlib import Path

import pytest

from sightline import bench
from sightline.bench import Network, benchmark, info, plots
from sightline.bench.run import Silent
from sightline.util import provenance
from sightline.util.errors import InputError

TINY = Network("tiny", "inline_deit_tiny", {"depths": 1, "embed_dims": 24, "num_heads": 2})


@pytest.mark.parametrize("module", [bench, info, plots, provenance])
def test_examples(module: object) -> None:
    result = doctest.testmod(module)  # type: ignore[arg-type]
    assert result.attempted > 0
    assert result.failed == 0


def test_models_without_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    steps: list[str] = []

    class Steps(Silent):
        def begin(self, label: str) -> None:
            steps.append(label)

    report = benchmark("models", model=TINY, img_size=[32, "32x48"], batch_size=2, mode="forward", baselines=["none"],
                       device="cpu", budget=1, progress=Steps)  # fmt: skip
    assert [(row.candidate, row.height, row.width) for row in report] == [
        ("tiny", 32, 32), ("tiny none", 32, 32), ("tiny", 32, 48), ("tiny none", 32, 48),
    ]  # fmt: skip
    assert steps == ["tiny 32 forward float32", "tiny 32x48 forward float32"]
    assert report.failures() == []
    assert report.files == list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "value"), [("dtype", "float8"), ("img_size", "x7"), ("window", [0]), ("shape", "7"), ("out", "")]
)
def test_errors_begin_with_the_argument(name: str, value: object) -> None:
    what = "ops" if name == "shape" else "models"
    with pytest.raises(InputError, match=f"^{name}: "):
        benchmark(what, device="cpu", **{name: value})  # type: ignore[arg-type]
