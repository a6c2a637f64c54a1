"""`sightline demo`: classify two photographs, with random weights or a checkpoint."""

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sightline.cli.models import known
from sightline.cli.options import Command, UsageError, option
from sightline.cli.output import Column, show

if TYPE_CHECKING:
    from torch import Tensor

COLUMNS = (
    Column("rank", right=True),
    Column("index", right=True),
    Column("probability", right=True),
    Column("class"),
)
TOP = 5


@dataclass(frozen=True)
class Options:
    """Classify the two sample photographs of scikit-learn and print the five likeliest classes of each.

    Without --checkpoint the weights are random and the classes mean nothing: it shows that the model runs.
    """

    model: str | None = option("model; by default inline_deit_tiny, or what the checkpoint holds", metavar="NAME")
    checkpoint: str | None = option("weights, public or sightline's own", metavar="FILE")
    seed: int = option("seed of the random weights; by default 0", default=0, metavar="N")


def run(options: Options) -> None:
    """Load, classify, print."""
    photographs = load_photographs()
    model, name = build(options)
    parameters = sum(p.numel() for p in model.parameters())
    print(f"{name}, {parameters / 1e6:.2f} M parameters")
    if options.checkpoint is None:
        print(f"The weights are RANDOM (seed {options.seed}): the classes below mean nothing.")
    classify(model, {next(iter(photographs)): next(iter(photographs.values()))})  # warm up, not timed
    for title, (values, indices, seconds) in classify(model, photographs).items():
        print(f"\n{title}: {seconds * 1000:.0f} ms")
        show(COLUMNS, _rows(values, indices, model.num_classes))
    print()
    if options.checkpoint is None:
        print(f"Next: `sightline demo --checkpoint FILE` with trained weights, or `sightline info {name}`.")
    else:
        print(f"Next: `sightline convert {options.checkpoint} OUT.safetensors` keeps these weights for timm.")


def load_photographs() -> dict[str, Any]:
    """The sample photographs by the name of their file."""
    try:
        from sklearn.datasets import load_sample_images
    except ImportError as error:
        raise UsageError("the photographs come with scikit-learn: pip install scikit-learn") from error
    from PIL import Image

    samples = load_sample_images()
    names = (str(name).replace("\\", "/").rsplit("/", 1)[-1] for name in samples.filenames)
    return {name: Image.fromarray(array) for name, array in zip(names, samples.images, strict=True)}


def build(options: Options) -> tuple[Any, str]:
    """The model in evaluation mode, and its name."""
    import torch

    from sightline.models.zoo import create

    if options.checkpoint is not None:
        from sightline.cli.weights import Checkpoint, choose, load, naming

        file = Checkpoint.read(options.checkpoint)
        with naming(file.path):
            identity = choose(file, options.model, {})[0]
            return load(file, identity).eval(), str(identity)
    name = known(options.model or "inline_deit_tiny")
    torch.manual_seed(options.seed)
    return create(name).eval(), name


def classify(model: Any, images: dict[str, Any]) -> "dict[str, tuple[Tensor, Tensor, float]]":
    """Probabilities and indices of the likeliest classes, and the seconds of the model, for every image."""
    import torch
    from timm.data import create_transform, resolve_model_data_config

    if not model.num_classes:
        raise UsageError("these weights have no classifier; give a checkpoint that has one")
    if model.in_chans != 3:
        raise UsageError(f"these weights take {model.in_chans} channels; the photographs have 3")
    transform = create_transform(**resolve_model_data_config(model), is_training=False)
    results = {}
    with torch.inference_mode():
        for name, image in images.items():
            batch = transform(image).unsqueeze(0)
            start = time.perf_counter()
            logits = model(batch)
            seconds = time.perf_counter() - start
            values, indices = logits[0].softmax(-1).topk(min(TOP, model.num_classes))
            results[name] = (values, indices, seconds)
    return results


def _rows(values: "Tensor", indices: "Tensor", num_classes: int) -> list[list[str]]:
    from timm.data import ImageNetInfo

    info = ImageNetInfo() if num_classes == 1000 else None
    return [
        [str(rank), str(index), f"{value:.4f}", info.index_to_description(index) if info else "-"]
        for rank, (value, index) in enumerate(zip(values.tolist(), indices.tolist(), strict=True), 1)
    ]


COMMAND = Command(
    Options,
    run,
    help="classify two photographs, with random weights or a checkpoint",
    examples="  sightline demo\n  sightline demo --model soft_tiny\n  sightline demo --checkpoint public.pth",
)
