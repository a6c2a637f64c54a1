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
# From the top; a layer may import itself and the layers below it. `analysis` and `bench` do not import each other.
LAYERS = (
    "cli", "explorer", "engine", "hub", "tasks", "analysis", "bench", "models", "layers", "ops", "backend",
    "data", "util",
)  # fmt: skip
RANK = {name: rank for rank, name in enumerate(LAYERS)} | {"__main__": 0}
EXTRAS = ("segmentation_models_pytorch", "accelerate", "matplotlib", "pycocotools", "onnx", "starlette", "uvicorn")
# What all tasks share: the files of `tasks` itself. Segmentation and detection also share the folder `dense`,
# and linearization, which trains classifiers, uses `classification`.
SHARED_TASKS = {path.stem for path in (SOURCE / "tasks").glob("*.py")}


def module_of(path: Path, root: Path) -> str:
    """The dotted name of a file, without the package: `ops/inline/__init__.py` -> `ops.inline`."""
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(path: Path, root: Path) -> Iterator[tuple[int, str]]:
    """Line and target, without the package, of every import of our own modules, wherever in the file it is."""
    package = [PACKAGE, *path.relative_to(root).parent.parts]
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            parents = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*parents, *([node.module] if node.module else [])])
            names = [f"{base}.{alias.name}" for alias in node.names]
        for name in names:
            if name.split(".")[0] == PACKAGE:
                yield node.lineno, name.partition(".")[2]


def layer_of(module: str) -> str:
    return module.split(".")[0]


def upward_imports(root: Path) -> list[str]:
    """Every import under `root` that points up, as `file:line: from -> to`, and files outside the layers."""
    found = []
    for path in sorted(root.rglob("*.py")):
        inside = path.relative_to(root)
        if inside == Path("__init__.py"):
            continue
        own = layer_of(module_of(path, root))
        if own not in RANK:
            found.append(f"{inside}:1: {own} is not a layer")
            continue
        for line, name in imported(path, root):
            target = layer_of(name)
            # the package itself (its version, its doors) is at the top
            if RANK.get(target, -1) < RANK[own] or {own, target} == {"analysis", "bench"}:
                found.append(f"{inside}:{line}: {own} -> {target if target in RANK else PACKAGE}")
    return found


def import_graph(root: Path) -> dict[str, set[str]]:
    """Modules and the modules that they import, typing-only and lazy imports included."""
    paths = {module_of(path, root): path for path in root.rglob("*.py")}
    graph: dict[str, set[str]] = {module: set() for module in paths if module}
    for module in graph:
        for _, name in imported(paths[module], root):
            while name and name not in graph:  # `ops.checks.Grid` is a name in `ops.checks`
                name = name.rpartition(".")[0]
            if name and name != module:
                graph[module].add(name)
    return graph


def circles(graph: dict[str, set[str]]) -> list[str]:
    """Modules that reach themselves, each with one way back."""
    found, done = [], set()

    def visit(module: str, trail: list[str]) -> None:
        if module in trail:
            found.append(" -> ".join([*trail[trail.index(module) :], module]))
        elif module not in done:
            for target in sorted(graph[module]):
                visit(target, [*trail, module])
            done.add(module)

    for module in sorted(graph):
        visit(module, [])
    return found


def test_imports_go_down() -> None:
    assert upward_imports(SOURCE) == []


def test_no_circles() -> None:
    assert circles(import_graph(SOURCE)) == []


def test_tasks_do_not_import_siblings() -> None:
    found = []
    for path in sorted((SOURCE / "tasks").rglob("*.py")):
        own = module_of(path, SOURCE).split(".")
        for line, name in imported(path, SOURCE):
            parts = name.split(".")
            if own[1:2] == ["registry"] or parts[0] != "tasks" or len(parts) < 2:
                continue
            if parts[1] not in {
                *own[1:2],
                *SHARED_TASKS,
                *(["dense"] if own[1] in ("segmentation", "detection") else []),
                *(["classification"] if own[1] == "linearize" else []),  # it trains classifiers
            }:
                found.append(f"{'/'.join(own)}:{line}: {name}")
    assert found == []


def test_engine_and_hub_name_no_task() -> None:
    files = [path for room in ("engine", "hub") for path in sorted((SOURCE / room).rglob("*.py"))]
    named = [
        f"{path.relative_to(SOURCE)}:{line}: {name}"
        for path in files
        for line, name in imported(path, SOURCE)
        if name.startswith("tasks.") and name.split(".")[1] not in SHARED_TASKS
    ]
    assert named == []


def test_no_mechanism_is_named_outside_layers() -> None:
    """`isinstance(x, InlineCore)` and the like belong to `layers`; others ask the core."""
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        if layer_of(module_of(path, SOURCE)) == "layers":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
                names = {item.id for item in ast.walk(node.args[1]) if isinstance(item, ast.Name)}
                if cores := [name for name in names if name.endswith("Core") and name != "Core"]:
                    found.append(f"{path.relative_to(SOURCE)}:{node.lineno}: {cores}")
    assert found == []


def test_every_file_was_read() -> None:
    folders = {path.name for path in SOURCE.iterdir() if path.is_dir()} - {"__pycache__"}
    assert folders <= {*LAYERS, "recipes"}  # which are data
    assert not list((SOURCE / "recipes").rglob("*.py"))
    assert "models.base.VisionModel" in {name for _, name in imported(SOURCE / "models" / "zoo.py", SOURCE)}


@pytest.mark.parametrize(
    ("file", "line", "complaint"),
    [
        ("ops/bad.py", "import sightline.models", "ops -> models"),
        ("ops/bad.py", "import torch, sightline.layers.blocks", "ops -> layers"),
        ("ops/inline/bad.py", "from ...models.zoo import VARIANTS", "ops -> models"),
        ("ops/bad.py", "from .. import models", "ops -> models"),
        ("layers/__init__.py", "from sightline import models", "layers -> models"),
        ("layers/bad.py", "def f():\n    from sightline import bench", "layers -> bench"),
        ("layers/bad.py", "if TYPE_CHECKING:\n    from sightline.models import VARIANTS", "layers -> models"),
        ("layers/bad.py", "import sightline", "layers -> sightline"),
        ("bench/bad.py", "from sightline.analysis import maps", "bench -> analysis"),
        ("util/bad.py", "from sightline.data import images", "util -> data"),
        ("hub/bad.py", "from sightline.engine.train import train", "hub -> engine"),
        ("stray/bad.py", "import torch", "stray is not a layer"),
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
        ("ops/good.py", "import torch.nn\nfrom torch import models"),
    ],
)
def test_the_check_can_pass(tmp_path: Path, file: str, line: str) -> None:
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text(f"{line}\n")
    assert upward_imports(tmp_path) == []


def test_circles_are_found(tmp_path: Path) -> None:
    (tmp_path / "ops").mkdir()
    (tmp_path / "ops" / "a.py").write_text("from sightline.ops import b\n")
    (tmp_path / "ops" / "b.py").write_text("if TYPE_CHECKING:\n    from sightline.ops.a import Name\n")
    assert circles(import_graph(tmp_path)) == ["ops.a -> ops.b -> ops.a"]


WITHOUT_EXTRAS = f"""
import sys
sys.argv = ["/usr/bin/sightline"]  # models are registered whatever the script is called
import sightline, timm, torch
print([name for name in {EXTRAS} if name in sys.modules])
for name in {EXTRAS}:
    sys.modules[name] = None  # an import of it raises ImportError
model = timm.create_model("inline_deit_tiny", depths=1).eval()
print(tuple(model(torch.zeros(1, 3, 32, 32)).shape))
"""


@pytest.mark.slow
def test_the_core_needs_no_extra() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_EXTRAS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["[]", "(1, 1000)"]
