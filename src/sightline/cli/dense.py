"""A trained segmenter or detector from a file or a run folder, for the commands that use one."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sightline.cli.options import UsageError

if TYPE_CHECKING:
    import torch
    from PIL import Image

    from sightline.tasks.dense.card import DenseCard


@dataclass(frozen=True)
class DenseModel:
    """A model in evaluation mode, its card and its file."""

    model: Any
    card: "DenseCard"
    path: Path

    @property
    def title(self) -> str:
        return f"{self.card.head['name']} on {self.card.name}"

    @property
    def parameters(self) -> int:
        return sum(p.numel() for p in self.model.parameters())


def find_dense(source: str) -> "tuple[Path, DenseCard] | None":
    """The file and card of a segmenter or detector; None for everything else.

    Raises:
        CardError: it says it is one, and its card is damaged.
    """
    from sightline.models.weights.reader import find_weights, read_metadata
    from sightline.tasks.card import CardError
    from sightline.tasks.dense.card import DenseCard

    if not source.strip():
        return None
    path = Path(source)
    if path.is_dir():
        try:
            path = find_weights(path)
        except ValueError:
            return None
    try:
        card = DenseCard.from_metadata(read_metadata(path))
    except CardError as error:
        raise CardError(f"{path}: {error}") from error
    return None if card is None else (path, card)


def load_dense(path: Path, card: "DenseCard", device: "torch.device") -> DenseModel:
    """Build what a card describes and load its weights.

    Raises:
        ValueError: the weights do not fit the card.
    """
    import torch

    from sightline.models.weights.fit import MismatchError, compare
    from sightline.models.weights.reader import read_state
    from sightline.tasks.detection import model as detection
    from sightline.tasks.segmentation import model as segmentation

    for key in card.arguments:  # a file must not name other files to read
        if key.startswith(("pretrained", "checkpoint", "cache")):
            raise UsageError(f"{path}: its card asks for {key!r}, which is not of the model; write the weights again")
    make: Any = segmentation.from_card if card.task == "segmentation" else detection.from_card
    state = read_state(path)
    try:
        with torch.device("meta"):  # before memory is taken: a forged card ends here
            mismatch = compare(state, make(card))
    except (ValueError, TypeError, RuntimeError, LookupError, ArithmeticError, AttributeError, AssertionError) as error:
        raise UsageError(f"{path}: {' '.join(str(error).split())[:240]}") from error
    if mismatch:
        raise MismatchError(f"{path}: the weights do not fit {card.head['name']} on {card.name}", mismatch)
    model = make(card)
    model.load_state_dict(state)
    return DenseModel(model.eval().to(device), card, path)


def segment(loaded: DenseModel, image: "Image.Image", device: "torch.device", test: Any) -> Any:
    """The class of every pixel of an image, as an array (H, W)."""
    from PIL import Image

    from sightline.tasks.dense.loading import normalize
    from sightline.tasks.detection.transforms import to_pixels
    from sightline.tasks.segmentation.infer import predict
    from sightline.tasks.segmentation.transforms import fitted

    card = loaded.card
    height, width = fitted(image.height, image.width, card.head["short"], card.head["long"])
    pixels = to_pixels(image.resize((width, height), Image.Resampling.BILINEAR)).to(device)
    images = normalize(pixels, card.mean, card.std).unsqueeze(0)
    return predict(loaded.model, images, test, card.input_size[1:], (image.height, image.width))[0].cpu().numpy()


def detect(loaded: DenseModel, image: "Image.Image", device: "torch.device", least: float) -> Any:
    """Boxes, labels, scores and masks of what is found in an image, in its own pixels."""
    import torch

    from sightline.tasks.dense.loading import normalize
    from sightline.tasks.detection.infer import in_place
    from sightline.tasks.detection.transforms import EvalTransform

    card = loaded.card
    pixels = EvalTransform(card.head["short"], card.head["long"])(image).to(device)
    with torch.inference_mode():
        found = loaded.model([normalize(pixels, card.mean, card.std)])[0]
    kept = {key: value[found["scores"] >= least] for key, value in found.items()}
    return in_place(kept, pixels.shape[-2:], image.height, image.width)


def inference_of(card: "DenseCard", slide: bool = False, scales: tuple[float, ...] = (), flip: bool = False) -> Any:
    """How images are evaluated: as in training, with what the command line changes."""
    from sightline.tasks.segmentation.config import Inference

    stored = card.head["test"]
    stride = stored["stride"]
    test = Inference(
        stored["mode"], tuple(stride) if isinstance(stride, list) else stride, tuple(stored["scales"]), stored["flip"]
    )
    return replace(test, mode="slide" if slide else test.mode, scales=scales or test.scales, flip=flip or test.flip)
