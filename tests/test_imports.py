"""Imports go one way: down the layers of the house, never up; and the core needs no extra."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import sightline

PACKAGE = "sightline"
SOURCE = Path(sightline.__file__).parent
# From the top; a layer may import itself and what stands below it.
LAYERS = ("cli", "engine", "hub", "tasks", "analysis", "bench", "models", "layers", "ops", "backend", "data", "util")
# The package itself imports its models, so whoever imports it imports them.
RANK = {name: rank for rank, name in enumerate(LAYERS)} | {PACKAGE: LAYERS.index("models"), "__main__": 0}
EXTRAS = ("segmentation_models_pytorch", "accelerate", "matplotlib", "pycocotools", "onnx")


def imported(tree: ast.Module, package: str) -> Iterator[tuple[int, str]]:
    """Line and full name of every import in a module of `package`, wherever in the file it stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*parents, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def layer_of(module: str) -> str:
    """The layer of a full module name; the package itself where no layer follows, as in its version."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in RANK else PACKAGE


def upward_imports(root: Path) -> list[str]:
    """Every import under `root` that climbs, as `file:line: from -> to`, and files outside the layers."""
    found = []
    for path in sorted(root.rglob("*.py")):
        inside = path.relative_to(root)
        if inside == Path("__init__.py"):
            continue
        own = inside.parts[0].removesuffix(".py")
        if own not in RANK:
            found.append(f"{inside}:1: {own} is not a layer")
            continue
        package = ".".join([PACKAGE, *inside.parent.parts])
        for line, name in imported(ast.parse(path.read_text()), package):
            if name.split(".")[0] == PACKAGE and RANK[layer_of(name)] < RANK[own]:
                found.append(f"{inside}:{line}: {own} -> {layer_of(name)}")
    return found


def test_imports_go_down() -> None:
    assert upward_imports(SOURCE) == []


def test_every_file_was_read() -> None:
    folders = {path.name for path in SOURCE.iterdir() if path.is_dir()} - {"__pycache__"}
    assert folders <= {*LAYERS, "recipes"}  # which are data
    assert not list((SOURCE / "recipes").rglob("*.py"))
    tree = ast.parse((SOURCE / "models" / "zoo.py").read_text())
    assert "sightline.models.base.VisionModel" in {name for _, name in imported(tree, "sightline.models")}


@pytest.mark.parametrize(
    ("file", "line", "complaint"),
    [
        ("ops/bad.py", "import sightline.models", "ops -> models"),
        ("ops/bad.py", "import torch, sightline.layers.blocks", "ops -> layers"),
        ("ops/inline/bad.py", "from sightline.layers.core import Grid", "ops -> layers"),
        ("ops/inline/bad.py", "from ...models.zoo import VARIANTS", "ops -> models"),
        ("ops/bad.py", "from .. import models", "ops -> models"),
        ("layers/__init__.py", "from sightline import models", "layers -> models"),
        ("layers/bad.py", "def f():\n    from sightline import bench", "layers -> bench"),
        ("layers/bad.py", "if TYPE_CHECKING:\n    from sightline.models import VARIANTS", "layers -> models"),
        ("layers/bad.py", "import sightline", "layers -> sightline"),
        ("layers/bad.py", "from sightline import __version__", "layers -> sightline"),
        ("backend.py", "from sightline.ops import inline_attention", "backend -> ops"),
        ("engine/bad.py", "from sightline.cli.main import main", "engine -> cli"),
        ("stray/bad.py", "import torch", "stray is not a layer"),
        ("stray.py", "import torch", "stray is not a layer"),
    ],
)
def test_the_check_can_fail(tmp_path: Path, file: str, line: str, complaint: str) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{line}\n")
    (found,) = upward_imports(tmp_path)
    assert found.startswith(f"{file}:")
    assert found.endswith(f": {complaint}")


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("__init__.py", "from sightline import cli, models"),
        ("__main__.py", "from sightline.cli.main import main"),
        ("models/good.py", "from sightline.layers import Core\nfrom . import base\nfrom .base import Size"),
        ("layers/good.py", "from sightline.ops.soft import reference\nfrom sightline import backend"),
        ("cli/good.py", "from sightline import __version__, models\nfrom ..engine import train"),
        ("ops/good.py", "import torch.nn\nfrom torch import models"),
    ],
)
def test_the_check_can_pass(tmp_path: Path, file: str, line: str) -> None:
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text(f"{line}\n")
    assert upward_imports(tmp_path) == []


def python(code: str) -> str:
    """What a fresh interpreter prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_core_imports_no_extra() -> None:
    code = f"import sys, sightline; print([m for m in {EXTRAS} if m in sys.modules])"
    assert python(code) == "[]"


def test_the_core_runs_without_extras() -> None:
    code = f"""
import sys
for name in {EXTRAS}:
    sys.modules[name] = None  # an import of it raises ImportError
import timm, torch, sightline
model = timm.create_model("inline_deit_tiny", depths=1).eval()
print(tuple(model(torch.zeros(1, 3, 32, 32)).shape))
"""
    assert python(code) == "(1, 1000)"
