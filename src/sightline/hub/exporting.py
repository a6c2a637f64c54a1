"""Take a model out of Python: an ONNX file, or a package compiled by AOTInductor, compared with the model."""

import json
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import cast

import torch
from timm.data import resolve_model_data_config
from torch import Tensor, nn

from sightline.hub import load
from sightline.hub.exported import FACTS, ExportedModel, open_exported, run_file
from sightline.hub.formats import SUFFIXES, check_dynamic, require_onnx, write_onnx, write_package
from sightline.hub.quantize import Calibration, calibration_files, quantize
from sightline.hub.trace import AXES, Graph, least_side, trace
from sightline.models.base import FeatureNet, VisionModel
from sightline.tasks.base import EvalOptions, Loaded
from sightline.tasks.card import CardError, ModelCard
from sightline.tasks.preprocess import at_size
from sightline.tasks.registry import TASKS
from sightline.util.device import choose_device
from sightline.util.errors import FileError, InputError, RunError, shown
from sightline.util.files import check_writable, reason, remove_stale, write_json
from sightline.util.names import format_size
from sightline.util.provenance import VERSION, machine_name, package_version, source_commit
from sightline.util.schema import both_sides

# The largest difference from the model, relative to its largest output if that is above one; int8 has none.
TOLERANCES = {"float32": 1e-4, "float16": 2e-2, "int8": float("inf")}
BATCHES = (1, 3)
SECONDS = 1.0  # of measuring latency, per size
PACKAGES = ("torch", "timm", "onnx", "onnxscript", "onnxruntime")


@dataclass(frozen=True)
class Check:
    """One comparison of an exported file with its model.

    Args:
        batch, height, width: of the images.
        difference: the largest, relative to the model's largest output if that is above one.
        model_ms, file_ms: median latency of the model, in eager mode, and of the file.
    """

    batch: int
    height: int
    width: int
    difference: float
    model_ms: float
    file_ms: float


@dataclass(frozen=True)
class Exported:
    """What `export` did.

    Args:
        target, report: the file, and the JSON next to it that has all of this.
        precision: "float32", "float16" or "int8".
        inputs: shape of the images, with names for dynamic axes.
        opset: of an ONNX file.
        tolerance: that every difference is below.
        checks: the file compared with the model.
        accuracy: of the model and of the file in percent on labeled calibration images, or None.
    """

    target: Path
    report: Path
    precision: str
    inputs: tuple[int | str, ...]
    opset: int | None
    tolerance: float
    checks: tuple[Check, ...]
    accuracy: tuple[float, float] | None = None


def export(
    source: str | Path | Loaded | nn.Module | None,
    target: str | Path,
    *,
    dynamic: str | Collection[str] | None = None,
    img_size: int | tuple[int, int] | None = None,
    half: bool = False,
    int8: str | Path | None = None,
    features: bool = False,
    device: str = "cpu",
    force: bool = False,
    progress: Callable[[str], object] | None = None,
) -> Exported:
    """Export a classifier, backbone or segmenter, and compare the file with it at several sizes and batches.

    Args:
        source: a run folder, a file of weights, what `sightline.load` opened, or a model; None for the packaged one.
        target: ends in .onnx, or in .pt2 for a package compiled for this machine.
        dynamic: axes of any length, some of "batch", "height" and "width", as a sequence or a text with commas; the
            others are fixed to one image and `img_size`. By default all three for ONNX files and segmenters, "batch"
            for other packages, which are faster for one size.
        img_size: pixels, or (height, width), of the images, and what `predict` resizes them to; by default as in
            training.
        half: weights and activations in float16, norms and sums in float32; images and outputs stay float32.
        int8: a folder of calibration images, for an ONNX file in int8; accuracy is compared if it has class folders.
        features: export the feature maps of a classifier, as features_only gives them.
        device: that a package is compiled for, cpu or cuda.
        force: replace an existing file.
        progress: called before every step, with what it does.

    Raises:
        InputError: an argument cannot be used, or the model cannot be exported.
        RunError: the file differs from the model by more than its tolerance; it is removed.

    Example:
        >>> import sightline
        >>> model = sightline.create_model("inline_deit_tiny", depths=1, embed_dims=48, img_size=32)
        >>> sightline.export(model, "model.onnx", dynamic=("batch",)).inputs
        ('batch', 3, 32, 32)
    """
    if source is not None and not isinstance(source, str | Path | nn.Module | Loaded):
        raise InputError(f"source: expected a run folder, a file of weights or a model; got {shown(source)}")
    path = _check_target(Path(target), force)
    axes = None if dynamic is None else check_dynamic(dynamic)
    sides = both_sides("img_size", img_size)
    if int8 is not None and (half or features or path.suffix != ".onnx"):
        raise InputError("int8: for ONNX files of whole models, without half and features; leave the others out")
    files = [] if int8 is None else calibration_files(int8)
    if files and isinstance(source, nn.Module):
        raise InputError("int8: a model alone has no transform for calibration images; give what `load` opened")
    place = choose_device(device)
    if path.suffix == ".onnx":
        require_onnx()
        place = torch.device("cpu")
    loaded = load(source) if source is None or isinstance(source, str | Path) else source
    _check_source(loaded)
    if isinstance(loaded, Loaded) and sides is not None:
        loaded = _at_size(loaded, sides)
    model, metadata, size = _describe(loaded, features, sides)
    axes = _default_axes(path, loaded) if axes is None else axes
    model = deepcopy(model).eval().to(place)
    precision = "int8" if files else "float16" if half else "float32"
    facts = {
        "size": size, "dynamic": axes, "precision": precision, "device": place.type, "commit": source_commit()[0],
        "classes": _classes(model, loaded),
        "parameters": sum(p.numel() for p in model.parameters()),
        "versions": {name: package_version(name) for name in PACKAGES} | {"sightline": VERSION},
    }  # fmt: skip
    metadata |= {FACTS: json.dumps(facts)}
    tolerance = TOLERANCES[precision]
    accuracy = None
    remove_stale(path)
    with TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp") as folder:
        work, tell = Path(folder) / path.name, progress or (lambda text: None)
        opset = _write(Graph(model, half, bool(files)), work, metadata, size, axes, place, loaded, files, tell)
        tell("comparing the file with the model")
        checks = tuple(_compare(model, run_file(work)[1], size, axes, place))
        worst = max(check.difference for check in checks)
        if not worst <= tolerance:
            raise RunError(
                f"{path}: differs from the model by {worst:.2g}, more than {tolerance:g}; the file is removed"
            )
        if int8 is not None and isinstance(loaded, Loaded):
            accuracy = _accuracy(loaded, open_exported(work), str(int8))
        report = path.with_name(f"{path.name}.json")
        done = Exported(path, report, precision, _shape(size, axes), opset, tolerance, checks, accuracy)
        record = asdict(done) | {"target": str(path), "report": str(report), "machine": machine_name(place.type)}
        write_json(work.with_name(report.name), record | facts)
        work.replace(path)
        work.with_name(report.name).replace(report)
    return done


def _shape(size: tuple[int, int, int], axes: tuple[str, ...]) -> tuple[int | str, ...]:
    """The shape of the images, with names for dynamic axes."""
    shape: list[int | str] = [1, *size]
    for name in axes:
        shape[AXES[name]] = name
    return tuple(shape)


def _check_target(path: Path, force: bool) -> Path:
    if path.suffix not in SUFFIXES:
        raise InputError(f"{path}: unknown suffix {path.suffix!r}; expected a file name that ends in .onnx or .pt2")
    if path.is_dir():
        raise InputError(f"{path}: this is a folder; give the name of a file")
    if path.exists() and not force:
        raise InputError(f"{path}: exists already; choose another name, or pass --force (force=True) to replace it")
    check_writable(path.parent, str(path))
    return path


def _check_source(source: Loaded | nn.Module) -> None:
    if isinstance(source if isinstance(source, nn.Module) else source.model, ExportedModel):
        raise InputError("this file is exported already; give the weights that it was made from")
    if isinstance(source, Loaded) and not TASKS[source.task].exports:
        known = " and ".join(name for name, spec in TASKS.items() if spec.exports)
        raise InputError(f"{source.path}: a model for {source.task}; only models for {known} can be exported")


def _default_axes(path: Path, source: Loaded | nn.Module) -> tuple[str, ...]:
    """All of an ONNX file, and of a segmenter, whose images come as they are; "batch" of other packages."""
    whole = isinstance(source, Loaded) and TASKS[source.task].any_size
    return tuple(AXES) if whole else SUFFIXES[path.suffix]


def _at_size(loaded: Loaded, sides: tuple[int, int]) -> Loaded:
    """The same model with the card and the transform for images of another size."""
    wanted = at_size(cast(ModelCard, loaded.card), sides)
    try:
        card, transform = TASKS[loaded.task].read_card(wanted.to_metadata())
    except CardError as error:
        raise InputError(f"img_size: {format_size(sides)} is too large for a card; give a smaller size") from error
    return replace(loaded, card=card, transform=transform)


def _describe(
    source: Loaded | nn.Module, features: bool, sides: tuple[int, int] | None
) -> tuple[nn.Module, dict[str, str], tuple[int, int, int]]:
    """The model to export, the metadata of the file, and (channels, height, width), with `sides` if given."""
    model = source if isinstance(source, nn.Module) else source.model
    if isinstance(source, nn.Module):
        inner = source.model if isinstance(source, FeatureNet) else source
        usual = resolve_model_data_config(inner)
        size = (inner.in_chans, *inner.img_size) if isinstance(inner, VisionModel) else tuple(usual["input_size"])
        size = (size[0], *(sides or size[1:]))
        inputs = {key: usual[key] for key in ("mean", "std", "interpolation", "crop_pct")}
        metadata = {"input": json.dumps(inputs | {"input_size": size})}
    else:
        size, metadata = tuple(source.card.input_size), source.card.to_metadata()
    if features:
        if not isinstance(model, VisionModel):
            raise InputError("features: only for classifiers of sightline; leave it out")
        model, metadata = FeatureNet(deepcopy(model), model.default_features), {"input": metadata["input"]}
    return model, metadata, size


def _classes(model: nn.Module, source: Loaded | nn.Module) -> int:
    """Outputs per image or pixel; 0 of a backbone."""
    known = getattr(model, "num_classes", None)
    return len(source.classes) if known is None and isinstance(source, Loaded) else int(known or 0)


def _write(
    graph: Graph, path: Path, metadata: dict[str, str], size: tuple[int, int, int], axes: tuple[str, ...],
    device: torch.device, loaded: Loaded | nn.Module, files: list[Path], tell: Callable[[str], object],
) -> int | None:  # fmt: skip
    """Trace the model and write the file; returns the opset of an ONNX file."""
    if path.suffix == ".pt2":
        _check_sides(size, axes, least_side(graph.model))
    tell(f"tracing the model for images ({', '.join(map(str, _shape(size, axes)))})")
    try:
        program = trace(graph, size, axes, device)
    except (RuntimeError, ValueError, TypeError, NotImplementedError, AssertionError) as error:
        remedy = "fewer dynamic axes" if {"height", "width"} & set(axes) else "another img_size"
        raise InputError(f"this model cannot be exported ({reason(error)}); try {remedy}") from error
    tell("compiling the graph" if path.suffix == ".pt2" else "writing the graph as ONNX")
    if path.suffix == ".pt2":
        write_package(program, path, metadata)
        return None
    count = len(program.graph_signature.user_outputs)
    names = ["output"] if count == 1 else [f"map_{i}" for i in range(count)]
    if not files:
        return write_onnx(program, path, metadata, names)
    assert isinstance(loaded, Loaded), "calibration images need the transform of a loaded model"
    wide = path.with_name("float32.onnx")
    opset = write_onnx(program, wide, metadata, names)
    tell(f"quantizing with {len(files)} images")
    quantize(wide, path, Calibration(loaded, files))
    return opset


def _check_sides(size: tuple[int, int, int], axes: tuple[str, ...], least: int) -> None:
    short = [name for name, side in zip(("height", "width"), size[1:], strict=True) if name in axes and side < least]
    if short:
        raise InputError(
            f"dynamic: a package for any {' and '.join(short)} takes {least} pixels or more, and this one is for "
            f"{format_size(size[1:])}; pass dynamic=batch, or give a larger img_size, or an .onnx file"
        )


def _compare(
    model: nn.Module, made: ExportedModel, size: tuple[int, int, int], axes: tuple[str, ...], device: torch.device
) -> Iterator[Check]:
    """Run model and file on the same images, at three sizes and two batches if these are dynamic."""
    channels, height, width = size
    sizes = [(height, width), (height + 1, width * 10 // 7), (height * 16 // 7, width * 16 // 7)]  # 224, 225x320, 512
    sizes = [(h if "height" in axes else height, w if "width" in axes else width) for h, w in sizes]
    generator = torch.Generator().manual_seed(0)
    for h, w in dict.fromkeys(sizes):
        for batch in BATCHES if "batch" in axes else BATCHES[:1]:
            images = torch.randn(batch, channels, h, w, generator=generator).to(device)
            with torch.no_grad():
                want, got = model(images), made(images)
                pairs = [(want, got)] if isinstance(want, Tensor) else list(zip(want, got, strict=True))
                difference = max(_difference(a, b) for a, b in pairs)
                times = [_latency(run, images, device) for run in (model, made)]
            yield Check(batch, h, w, difference, *times)


def _difference(want: Tensor, got: Tensor) -> float:
    if want.shape != got.shape or not got.isfinite().all():
        return float("inf")
    return ((got - want).abs().max() / want.abs().max().clamp(min=1)).item()


def _latency(run: nn.Module, images: Tensor, device: torch.device) -> float:
    """The median time of a call in milliseconds, after the one that compared outputs."""
    times: list[float] = []
    while not times or (sum(times) < SECONDS and len(times) < 10):
        start = time.perf_counter()
        run(images)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - start)
    return 1000 * median(times)


def _accuracy(model: Loaded, made: Loaded, data: str) -> tuple[float, float] | None:
    """The score of both on a labeled folder, in percent; None if it has no labels."""
    spec, options = TASKS[model.task], EvalOptions(torch.device("cpu"), workers=0)
    with suppress(InputError, FileError):
        first, second = (spec.evaluate(item, data, None, options)["usual"][spec.best] for item in (model, made))
        return first, second
    return None
