"""The Python blocks of README and docs run, page by page, in a folder with a few images and weights."""

import re
import runpy
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from PIL import Image

import sightline

ROOT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
# What a reader has before the first block of a page.
GIVEN = {
    "docs/analysis.md": """
import sightline, torch
model = sightline.create_model("inline_deit_tiny", depths=2, num_classes=4).eval()
image, images = torch.rand(3, 64, 96), torch.rand(2, 3, 64, 96)
""",
    "docs/evaluation.md": 'import sightline\nsightline.train("quick", out="runs/quick")\n',
    "docs/huggingface.md": 'import sightline\nsightline.train("quick", out="runs/quick")\n',
    "docs/mechanisms.md": "import timm, sightline",
    "docs/sequences.md": "import torch\nids = torch.randint(1, 200, (2, 50))",
    "docs/training.md": "",
}
# Short runs: a page trains for minutes, a test for two updates; a page evaluates all images with processes that
# decode, a test a few of every class.
SHORT = (
    ("sightline.evaluate(loaded)", "sightline.evaluate(loaded, limit=4, workers=0)"),
    ('sightline.train("quick"', 'sightline.train("quick", **SHORT_RUN'),
    ('sightline.train("finetune", data="photos"', 'sightline.train("quick", **SHORT_RUN'),
    ("torch.randn(1, 3, 512, 768)", "torch.randn(1, 3, 64, 96)"),
)
SHORT_RUN = """SHORT_RUN = {
    "run.max_steps": 2, "run.device": "cpu", "run.tensorboard": False, "run.report": False, "data.limit": 4,
    "batch.size": 8, "data.workers": 0,
}
"""
WITHOUT_WEIGHTS = "docs/models.md"  # large models, which are built only
PAGES = ("README.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))))


def blocks(page: str) -> list[str]:
    return BLOCK.findall((ROOT / page).read_text())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder as the pages assume: photographs, and weights of timm's DeiT-Tiny."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    generator = torch.Generator().manual_seed(0)
    for path in (tmp_path / "photo.jpg", tmp_path / "photos" / "a.jpg", tmp_path / "photos" / "b.jpg"):
        pixels = torch.randint(0, 256, (48, 64, 3), generator=generator, dtype=torch.uint8)
        Image.fromarray(pixels.numpy()).save(path)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)])
def test_python_blocks_run(page: str, folder: Path) -> None:
    code = "\n".join([SHORT_RUN, GIVEN.get(page, ""), *blocks(page)])
    for plain, short in SHORT:
        code = code.replace(plain, short)
    if "deit_tiny.pth" in code:
        timm_model = sightline.create_model("deit_tiny_patch16_224")
        torch.save({"model": timm_model.state_dict()}, folder / "deit_tiny.pth")
    script = folder / "page.py"
    script.write_text(code)
    with torch.device("meta") if page == WITHOUT_WEIGHTS else nullcontext():
        runpy.run_path(str(script))


def test_pages_have_blocks() -> None:
    assert len(blocks("README.md")) >= 2
    assert len(blocks("docs/python.md")) >= 4


def test_links_lead_somewhere() -> None:
    for page in (*PAGES, "CONTRIBUTING.md"):
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", (ROOT / page).read_text()):
            if "://" not in target:
                assert ((ROOT / page).parent / target).exists(), f"{page}: {target}"
