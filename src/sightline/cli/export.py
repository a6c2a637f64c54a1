"""`sightline export`: write a model as ONNX or as a compiled package, compared with the model."""

import sys
from dataclasses import dataclass
from json import loads

from sightline.cli.options import Command, option, positional
from sightline.cli.output import number, print_json, show
from sightline.util.names import format_size
from sightline.util.schema import Listed, Size
from sightline.util.text import say

COLUMNS = (number("batch"), number("size"), number("difference"), number("model ms"), number("file ms"))


@dataclass(frozen=True, kw_only=True)
class Options:
    """Write a classifier, its backbone or a segmenter as an ONNX file, or as a package that AOTInductor compiles.

    The file is compared with the model at those of three sizes and two batches that it accepts. If it differs by more
    than 1e-4 (0.02 with --half), it is removed, and the status is 1. `sightline predict` and `eval` take the file as
    --checkpoint.
    """

    source: str | None = positional(
        "run folder, or file of weights, public ones as published; by default the model in the package", optional=True
    )
    out: str = positional("file to write, ending in .onnx or .pt2")
    dynamic: Listed[str] | None = option(
        "axes of any length: batch,height,width (default for .onnx), batch (default for .pt2; one size runs faster), "
        "or none",
        metavar="AXES",
    )
    img_size: Size | None = option("pixels, 224 or 384x640 (height x width); by default as trained", metavar="SIZE")
    half: bool = option("float16, with norms and sums in float32", default=False)
    int8: str | None = option("int8, calibrated with the images of a folder; ONNX only", metavar="FOLDER")
    features: bool = option("the feature maps of a classifier instead of its classes", default=False)
    device: str = option("device that a package is compiled for: cpu (default) or cuda", default="cpu", metavar="NAME")
    force: bool = option("replace OUT if it exists", default=False)
    json: bool = option("print the report as JSON", default=False)


def run(options: Options) -> None:
    """Export and print the comparison, the file last."""
    from sightline.hub.exporting import export

    done = export(
        options.source, options.out, dynamic=options.dynamic, img_size=options.img_size, half=options.half,
        int8=options.int8, features=options.features, device=options.device, force=options.force,
        progress=lambda text: say(text, file=sys.stderr),
    )  # fmt: skip
    if options.json:
        print_json(loads(done.report.read_text()))
        return
    opset = "" if done.opset is None else f", opset {done.opset}"
    say(f"images ({', '.join(map(str, done.inputs))}), {done.precision}{opset}")
    show(
        COLUMNS,
        [
            [
                str(check.batch), format_size((check.height, check.width)), f"{check.difference:.1e}",
                f"{check.model_ms:.1f}", f"{check.file_ms:.1f}",
            ]
            for check in done.checks
        ],
    )  # fmt: skip
    if done.accuracy is not None:
        before, after = done.accuracy
        say(f"accuracy on the calibration images: {before:.2f} %, exported {after:.2f} % ({after - before:+.2f})")
    size = done.target.stat().st_size / 1e6
    say(f"wrote {done.target} ({size:.1f} MB) and {done.report}")


COMMAND = Command(
    Options,
    run,
    help="write a model as ONNX or as a compiled package",
    examples=(
        "  sightline export model.onnx\n"
        "  sightline export runs/quick model.onnx\n"
        "  sightline export public.pth model.onnx --int8 photos\n"
        "  sightline export runs/quick model.pt2\n"
        "  sightline export model.pt2 --img-size 1024 --half --device cuda\n"
        "  sightline predict photo.jpg --checkpoint model.onnx"
    ),
)
