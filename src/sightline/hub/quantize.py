"""ONNX files in int8: weights per channel, activations by the range that calibration images give."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from sightline.data.images import find_images, load_image
from sightline.hub.formats import INPUT
from sightline.tasks.base import Loaded
from sightline.util.errors import InputError

MOST = 128  # calibration images
OPERATORS = ("Conv", "Gemm", "MatMul")


def calibration_files(folder: str | Path) -> list[Path]:
    """Images of a folder, spread over all of them.

    Raises:
        InputError: there is no such folder, or no image in it.
    """
    if not Path(folder).is_dir():
        raise InputError(f"int8: {folder} is not a folder; give a folder of images like those of training")
    found = find_images([str(folder)])
    return found[:: -(-len(found) // MOST)]


class Calibration:
    """Feeds images one by one to onnxruntime's calibration."""

    def __init__(self, loaded: Loaded, files: Sequence[Path]) -> None:
        assert loaded.transform is not None
        channels, transform = loaded.card.input_size[0], loaded.transform

        def read(file: Path) -> Tensor:
            image: Image.Image = load_image(file, channels=channels)
            return transform(image)

        self.images: Iterator[Tensor] = map(read, files)

    def get_next(self) -> dict[str, np.ndarray] | None:
        image = next(self.images, None)
        return None if image is None else {INPUT: image[None].float().numpy()}


def quantize(source: Path, target: Path, calibration: Calibration) -> None:
    """Write `target`, in which layers with fixed weights work on int8; products of two activations stay as they are."""
    import onnx
    from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static

    proto = onnx.load(str(source))
    quantize_static(
        str(source), str(target), calibration, quant_format=QuantFormat.QDQ, per_channel=True,
        activation_type=QuantType.QInt8, weight_type=QuantType.QInt8, calibrate_method=CalibrationMethod.MinMax,
        op_types_to_quantize=list(OPERATORS), nodes_to_quantize=_layers(proto),
    )  # fmt: skip
    made = onnx.load(str(target))
    onnx.helper.set_model_props(made, {item.key: item.value for item in proto.metadata_props})
    onnx.save(made, str(target))


def _layers(proto: Any) -> list[str]:
    """The nodes that multiply features of the image by weights of the file: not those that resample position tables."""
    ranks = {item.name: len(item.dims) for item in proto.graph.initializer}
    features, found = {INPUT}, []
    for node in proto.graph.node:  # in the order in which they run
        if node.op_type in ("Shape", "Size") or features.isdisjoint(node.input):
            continue
        features.update(node.output)
        weight = node.op_type in OPERATORS and ranks.get(node.input[1]) == (4 if node.op_type == "Conv" else 2)
        if weight and node.input[0] in features:
            found.append(node.name)
    return found
