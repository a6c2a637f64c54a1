"""The weights of a run as the file that comes with the package.

    python tools/pack_box.py runs/box --eval imagenet_dev

Writes float16 weights with their card to src/sightline/models/weights/files, with a page about them, and compares them
with those of the run: on the sample photographs, and on the labeled images of --eval.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import save_file
from side_by_side import finish

import sightline
from sightline import explorer
from sightline.engine.evaluate import evaluate
from sightline.engine.linearize import RESULTS
from sightline.models.weights import packaged
from sightline.models.weights.identify import arguments
from sightline.tasks.base import Loaded
from sightline.util.errors import InputError
from sightline.util.files import file_digest

LIMIT = 13_000_000  # bytes
LICENCE = "Apache-2.0"
SECTIONS = ("linearize", "augment", "batch", "optim", "schedule", "ema")
TEACHER = "vit_tiny_patch16_224.augreg_in21k_ft_in1k (Google, Apache-2.0)"
IMAGES = (
    "29,928 photographs without labels: COCO train2017 (13,517), Caltech-101 (4,871), Imagewoof (2,497), Oxford-IIIT "
    "Pets (1,985), Oxford Flowers (1,198), PACS (1,168), two samples of ImageNet (974 and 968), "
    "groceries (500), cars (472), Flickr8k (401), vegetables (399), textures (398), monkeys (383) and plants (197)"
)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="folder of `sightline linearize`")
    parser.add_argument("--eval", help="labeled images, for the page")
    parser.add_argument("--teacher", default=TEACHER, help="what the page says about the teacher")
    parser.add_argument("--images", default=IMAGES, help="and about the images")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args(arguments)
    loaded = sightline.load(options.run)
    path = pack(loaded)
    print(f"wrote {path}, {path.stat().st_size:,} bytes")
    facts = {
        "licence": LICENCE,
        "teacher": options.teacher,
        "images": options.images,
        "made": made_by(Path(options.run)),
        "sha256": file_digest(path),
        "bytes": path.stat().st_size,
        **compare(loaded, path),
    }
    if options.eval:
        facts |= accuracy(path, options.eval, options.workers)
    facts["agreement"] = json.loads(Path(options.run, RESULTS).read_text(encoding="utf-8"))["scores"]["agreement"]
    facts["settings"] = settings_of(Path(options.run, "config.yaml"))
    path.with_suffix(".md").write_text(page(facts), encoding="utf-8")
    print(json.dumps({key: value for key, value in facts.items() if key != "settings"}, indent=1))
    return 0


def made_by(run: Path) -> str:
    """The command of a run and what it ran on."""
    found = json.loads((run / "versions.json").read_text(encoding="utf-8"))
    return f"`{found['command']}` with torch {found['torch']} on {found['device']}"


def settings_of(path: Path) -> str:
    """The sections of a configuration that tell how a student was trained, without paths."""
    found = yaml.safe_load(path.read_text(encoding="utf-8")) if path.is_file() else {}
    found.get("linearize", {}).pop("start", None)
    return yaml.safe_dump({key: found[key] for key in SECTIONS if key in found}, sort_keys=False)


def pack(loaded: Loaded) -> Path:
    """Write the weights in float16.

    Raises:
        InputError: they are not those of the packaged model, not finite in float16, or too many.
    """
    name, own = packaged.DEFAULT, arguments(packaged.DEFAULT)
    given = {key: value for key, value in loaded.card.arguments.items() if _plain(own.get(key)) != _plain(value)}
    if loaded.card.name != name or given:
        raise InputError(
            f"{loaded.path}: {loaded.card.title} differs from {name} in {given}; change the row in models/zoo.py"
        )
    state = {key: value.half().contiguous() for key, value in loaded.model.state_dict().items()}
    if wrong := [key for key, value in state.items() if not value.isfinite().all()]:
        raise InputError(f"{loaded.path}: {wrong[0]} is not finite in float16")
    packaged.FOLDER.mkdir(exist_ok=True)
    path = packaged.FOLDER / f"{name}.safetensors"
    save_file(state, path, {**loaded.card.to_metadata(), "license": LICENCE})
    path.chmod(0o644)
    if path.stat().st_size > LIMIT:
        path.unlink()
        raise InputError(f"{loaded.path}: more than {LIMIT:,} bytes in float16")
    return path


def _plain(value: Any) -> Any:
    """Tuples of one value and lists as JSON and the arguments of a model have them alike."""
    value = list(value) if isinstance(value, tuple | list) else value
    return value[0] if isinstance(value, list) and len(value) == 1 else value


@torch.no_grad()
def compare(loaded: Loaded, path: Path) -> dict[str, Any]:
    """The largest difference of a probability between run and file on the sample photographs, and what is seen."""
    images = sorted((Path(explorer.__file__).parent / "samples").glob("*.jpg"))
    files = sightline.load(path)
    both = [list(sightline.predict(model, list(images), top=1000, device="cpu")) for model in (loaded, files)]
    gaps = [
        abs(before["probability"] - after["probability"])
        for first, second in zip(*both, strict=True)
        for before, after in zip(_by_class(first.found), _by_class(second.found), strict=True)
    ]
    seen = {Path(one.file).name: one.found[0]["class"] for one in both[1]}
    return {"difference": max(gaps), "seen": seen}


def _by_class(rows: Any) -> Any:
    return sorted(rows, key=lambda row: row["index"])


def accuracy(path: Path, data: str, workers: int) -> dict[str, Any]:
    """Top-1 and top-5 of the file, with the number of images and the standard error of top-1."""
    scores = evaluate(path, data, workers=workers)
    share = scores["top1"] / 100
    error = 100 * (share * (1 - share) / scores.images) ** 0.5
    return {"top1": scores["top1"], "top5": scores["top5"], "standard_error": round(error, 2), "tested": scores.images}


def page(facts: dict[str, Any]) -> str:
    """The page about the file, as Markdown."""
    tested = (
        f"{facts['top1']:.2f} ± {facts['standard_error']:.2f} % top-1 and {facts['top5']:.2f} % top-5 on "
        f"{facts['tested']:,} images of ImageNet's validation set"
        if "top1" in facts
        else "not measured"
    )
    seen = "\n".join(f"| {name} | {what} |" for name, what in facts["seen"].items())
    return f"""# {packaged.DEFAULT}

A classifier of the thousand ImageNet classes with linear attention in all blocks, made by `sightline linearize`.

- Accuracy: {tested}.
- Teacher: {facts["teacher"]}, with which it agrees on {facts["agreement"]:.2f} % of these images. It learned
  the teacher's outputs, never labels.
- Images: {facts["images"]}; none of those that it was tested on.
- License: {facts["licence"]}.
- Weights: float16, {facts["bytes"]:,} bytes, SHA-256 {facts["sha256"]}.
- Made by {facts["made"]}.

| sample photograph | likeliest class |
|---|---|
{seen}

Settings of the last stage:

```yaml
{facts["settings"].rstrip()}
```
"""


if __name__ == "__main__":
    finish(main)
