"""Exported files in place of weights: an object that is called like the model, and the card in the file."""

import json
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, TypeAdapter
from torch import Tensor, nn

from sightline.hub.formats import INPUT, require_onnx
from sightline.hub.trace import AXES
from sightline.tasks.base import Loaded
from sightline.tasks.registry import task_of
from sightline.util.errors import FileError, InputError, shown
from sightline.util.files import reason
from sightline.util.schema import Side

FACTS = "exported"  # the metadata entry that identifies a file exported by sightline
LARGEST = 1 << 26  # bytes of metadata
LIBRARIES = (".so", ".dylib", ".dll", ".pyd")  # where a package has its compiled code
Run = Callable[[Tensor], Sequence[Tensor]]
Natural = Annotated[int, Field(ge=0, le=2**53)]


@dataclass(frozen=True)
class Facts:
    """What a file records about itself."""

    size: tuple[Side, Side, Side]  # channels, height, width
    dynamic: tuple[Literal["batch", "height", "width"], ...]
    device: Literal["cpu", "cuda"]
    classes: Natural
    parameters: Natural


FACTS_OF = TypeAdapter(Facts)


class ExportedModel(nn.Module):
    """A file called like the model that it was made from: images (B, C, H, W) on any device -> outputs there.

    Args:
        run: images -> outputs.
        facts: what the file records about itself.
        device: that `run` takes its images on.
    """

    whole = False  # with a head, whose outputs must be those that the file records

    def __init__(self, run: Run, facts: Facts, device: torch.device) -> None:
        super().__init__()
        self.run, self.device = run, device
        self.size, self.dynamic = facts.size, facts.dynamic
        self.num_classes, self.num_parameters = facts.classes, facts.parameters

    def forward(self, images: Tensor) -> Tensor | list[Tensor]:
        for name, wanted in zip(("height", "width"), self.size[1:], strict=True):
            got = images.shape[AXES[name]]
            if name not in self.dynamic and got != wanted:
                raise InputError(
                    f"img_size: the file is for images with a {name} of {wanted} pixels only; got {got}; for "
                    f"others, export it with --dynamic batch,height,width"
                )
        parts = (images,) if "batch" in self.dynamic else images.split(1)
        found = [self.run(part.detach().to(self.device, torch.float32).contiguous()) for part in parts]
        outputs = [torch.cat(items).to(images.device) for items in zip(*found, strict=True)]
        if self.whole and any(out.shape[:2] != (len(images), self.num_classes) for out in outputs):
            shapes = [tuple(out.shape) for out in outputs]
            raise FileError(
                f"the file gives outputs of shape {shown(shapes)} for {self.num_classes} classes; export it again"
            )
        return outputs[0] if len(outputs) == 1 else outputs


def open_exported(path: Path) -> Loaded:
    """The model in an exported file, with its card.

    Raises:
        FileError: the file cannot be read, was not exported by sightline, or has no head.
    """
    if not path.is_file():
        raise FileError(f"{path}: no such file; give a file that `sightline export` wrote")
    metadata, model = run_file(path)
    spec = task_of(metadata)
    if spec is None or not spec.exports:
        raise FileError(f"{path}: a backbone without a head, which gives maps; give the export of a whole model")
    card, transform = spec.read_card(metadata)
    if card.classes and len(card.classes) != model.num_classes:
        raise FileError(f"{path}: {len(card.classes)} names for {model.num_classes} classes; export it again")
    model.whole = model.num_classes > 0
    return Loaded(model, card, transform, card.classes, path, spec.name)


def run_file(path: Path) -> tuple[dict[str, str], ExportedModel]:
    """The metadata of an exported file, and the file as a model."""
    return _open_onnx(path) if path.suffix == ".onnx" else _open_package(path)


def _open_onnx(path: Path) -> tuple[dict[str, str], ExportedModel]:
    require_onnx()
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # errors are raised, and would be printed raw with names of the file
    options.intra_op_num_threads = torch.get_num_threads()
    wanted = ("CUDAExecutionProvider", "CPUExecutionProvider")
    providers = [name for name in wanted if name in onnxruntime.get_available_providers()]
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=providers)
        metadata = dict(session.get_modelmeta().custom_metadata_map)
    except Exception as error:  # onnxruntime has a class for every kind of damage
        raise FileError(f"{path}: onnxruntime cannot read it ({reason(error)}); export it again") from error

    def run(images: Tensor) -> list[Tensor]:
        try:
            return [torch.from_numpy(out) for out in session.run(None, {INPUT: images.numpy()})]
        except Exception as error:
            shape = tuple(images.shape)
            raise FileError(f"{path}: failed on images of shape {shape} ({reason(error)}); export it again") from error

    return metadata, ExportedModel(run, _facts(path, metadata), torch.device("cpu"))


def _open_package(path: Path) -> tuple[dict[str, str], ExportedModel]:
    metadata = _package_metadata(path)
    facts = _facts(path, metadata)
    device = torch.device(facts.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise FileError(f"{path}: compiled for a GPU, and there is none; export it on the machine that runs it")
    try:
        package: Any = torch._inductor.aoti_load_package(str(path))
    except RuntimeError as error:
        raise FileError(f"{path}: cannot be loaded ({reason(error)}); export it on this machine") from error

    def run(images: Tensor) -> Sequence[Tensor]:
        with torch.no_grad():
            return package(images)

    return metadata, ExportedModel(run, facts, device)


def _package_metadata(path: Path) -> dict[str, str]:
    """The metadata of a package, read before any of its code is loaded."""
    try:
        with zipfile.ZipFile(path) as archive:
            entries = [e for e in archive.infolist() if e.filename.endswith("_metadata.json") and e.file_size < LARGEST]
            found = [json.loads(archive.read(entry)) for entry in entries]
            code = any(name.endswith(LIBRARIES) for name in archive.namelist())
            damaged = archive.testzip()  # code that is damaged, or missing in torch 2.11, would end the process
    except (zipfile.BadZipFile, OSError, ValueError, RecursionError) as error:
        raise FileError(f"{path}: not a compiled package ({reason(error)}); export it again") from error
    if damaged is not None:
        raise FileError(f"{path}: its part {shown(damaged)} is damaged; export it again")
    if not code:
        raise FileError(f"{path}: a package without compiled code; export it again")
    return {
        key: text for item in found if isinstance(item, dict) for key, text in item.items() if isinstance(text, str)
    }


def _facts(path: Path, metadata: Mapping[str, str]) -> Facts:
    try:
        return FACTS_OF.validate_json(metadata[FACTS])
    except (KeyError, ValueError) as error:
        raise FileError(f"{path}: not exported by sightline; give a file that `sightline export` wrote") from error
