"""The images that `sightline analyze` looks at, with labels or without."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from sightline.cli.analyze_models import Loaded
from sightline.cli.options import UsageError

if TYPE_CHECKING:
    import torch
    from PIL import Image
    from torch import Tensor

    from sightline.tasks.classification.data import Split

EMBEDDED = "embedded"


@dataclass(frozen=True)
class Gallery:
    """Images by name; `read` decodes one with so many channels."""

    names: list[str]
    read: "Callable[[int, int], Image.Image]"

    def __len__(self) -> int:
        return len(self.names)

    def spread(self, limit: int) -> "Gallery":
        """At most `limit` of them, evenly spread."""
        count = min(limit, len(self))
        chosen = [i * len(self) // count for i in range(count)]
        return Gallery([self.names[i] for i in chosen], lambda i, channels: self.read(chosen[i], channels))


class Prepared(Sequence["Tensor"]):
    """The images of a gallery as a model takes them, decoded when asked for."""

    def __init__(self, gallery: Gallery, loaded: Loaded, device: "torch.device") -> None:
        from sightline.tasks.classification.preprocess import make_transform

        self.gallery, self.device = gallery, device
        self.channels = loaded.card.input_size[0]
        self.transform = make_transform(loaded.card)

    def __len__(self) -> int:
        return len(self.gallery)

    @overload
    def __getitem__(self, index: int) -> "Tensor": ...

    @overload
    def __getitem__(self, index: slice) -> "list[Tensor]": ...

    def __getitem__(self, index: "int | slice") -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self.transform(self.gallery.read(index, self.channels)).to(self.device)


def open_gallery(data: str | None, checkpoint: str | None, limit: int) -> Gallery:
    """The images that are meant, of which at most `limit`: as given, else those of the run."""
    from sightline.data.images import load_image

    if data is not None and _are_files(data):
        from sightline.cli.predict import find_images

        files = find_images((data,))
        whole = Gallery([str(file) for file in files], lambda i, channels: load_image(files[i], channels=channels))
        return whole.spread(limit)
    split = open_labelled(data, checkpoint)
    return Gallery([split.name(i) for i in range(len(split))], split.image).spread(limit)


def _are_files(data: str) -> bool:
    """Whether it names image files, one by one or by their folder; not an archive or a data set."""
    return data != EMBEDDED and not data.startswith("hfds/") and Path(data).suffix != ".tar" and not _has_archives(data)


def _has_archives(data: str) -> bool:
    return Path(data).is_dir() and any(Path(data).glob("*.tar"))


def open_labelled(data: str | None, checkpoint: str | None) -> "Split":
    """Labelled images: as given, else those of the run."""
    from sightline.cli.evaluation import data_of
    from sightline.tasks.classification.config import Data
    from sightline.tasks.classification.data import open_split

    if data is None and (checkpoint is None or not Path(checkpoint).is_dir()):
        raise UsageError("--data: say which images: a folder, a file, or embedded; only a run folder knows its own")
    wanted = Data() if data == EMBEDDED else replace(data_of(checkpoint, data), limit=None)
    return open_split(wanted, "val")


@dataclass(frozen=True)
class LabelledImages:
    """A split whose labels are the outputs of a model."""

    split: "Split"
    outputs: list[int]  # of every class of the split

    def batches(self, loaded: Loaded, size: int, device: "torch.device") -> "Iterator[tuple[Tensor, Tensor]]":
        """Images as the model takes them, and the outputs that are right."""
        import torch

        from sightline.tasks.classification.passes import one_pass

        labels = torch.tensor([self.outputs[target] for target in self.split.targets])
        for images, places in one_pass(self.split, loaded.card, size):
            yield images.to(device), labels[places].to(device)


def labelled_for(loaded: Loaded, split: "Split") -> LabelledImages:
    """Match the classes of a split with the outputs of a model, by name where the outputs have names."""
    from sightline.data.labels import match

    model: Any = loaded.model
    names = loaded.card.classes or tuple(str(i) for i in range(model.num_classes))
    return LabelledImages(split, match(split.classes, names, "names" if loaded.named else "order"))


def thinned(split: "Split", limit: int) -> "Split":
    """At most `limit` images of a split, evenly spread over its classes."""
    from sightline.tasks.classification.data import Split

    if len(split) <= limit:
        return split
    order = sorted(range(len(split)), key=lambda i: split.targets[i])
    chosen = sorted(order[i * len(order) // limit] for i in range(limit))
    targets = dict(zip(split.indices, split.targets, strict=True))
    return Split(split.reader, targets, split.classes, split.title, [split.indices[i] for i in chosen])  # type: ignore[arg-type]
