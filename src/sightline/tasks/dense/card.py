"""What a file of weights says of a segmenter or detector."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from sightline.tasks.card import MAX_SIDE, CardError, ModelCard

TASKS = ("segmentation", "detection")
Check = Callable[[Any], bool]


def _whole(least: int, most: int) -> Check:
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _number(least: float, most: float) -> Check:
    return lambda value: isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most


def _or_none(check: Check) -> Check:
    return lambda value: value is None or check(value)


def _list_of(check: Check) -> Check:
    return lambda value: isinstance(value, list) and bool(value) and all(check(item) for item in value)


def _flag(value: Any) -> bool:
    return isinstance(value, bool)


def _stride(value: Any) -> bool:
    one = _whole(1, MAX_SIDE)
    return value is None or one(value) or (_list_of(one)(value) and len(value) == 2)


HEADS: dict[str, dict[str, Check]] = {
    "segmentation": {
        "name": ("upernet", "semantic_fpn").__contains__, "channels": _whole(8, 8192), "drop": _number(0, 1),
        "auxiliary": _flag, "short": _or_none(_whole(1, MAX_SIDE)), "long": _whole(1, MAX_SIDE),
        "test": lambda value: isinstance(value, dict),
    },
    "detection": {
        "name": ("mask_rcnn", "retinanet", "cascade_mask_rcnn", "faster_rcnn").__contains__,
        "channels": _whole(8, 8192), "anchor": _or_none(_number(0.01, MAX_SIDE)), "short": _whole(1, MAX_SIDE),
        "long": _whole(1, MAX_SIDE), "score": _number(0, 1), "nms": _number(0, 1), "detections": _whole(1, 10**6),
    },
}  # fmt: skip
TEST: dict[str, Check] = {
    "mode": ("whole", "slide").__contains__, "stride": _stride, "scales": _list_of(_number(0.1, 8)), "flip": _flag,
}  # fmt: skip


def check_head(head: Mapping[str, Any], task: str) -> None:
    """Check what a file says of a head, field by field.

    Raises:
        CardError: a field is missing, or of no use.
    """
    _check(head, HEADS[task], "head")
    if task == "segmentation":
        _check(head["test"], TEST, "test")


def _check(values: Mapping[str, Any], checks: Mapping[str, Check], where: str) -> None:
    for key, check in checks.items():
        if key not in values:
            raise CardError(f"its card is damaged (no {key} in {where}); write the weights again")
        if not check(values[key]):
            raise CardError(
                f"its card is damaged ({where} has {key}={repr(values[key])[:60]}); write the weights again"
            )


@dataclass(frozen=True)
class DenseCard(ModelCard):
    """A backbone as in `ModelCard`, and what stands on it.

    Args:
        task: "segmentation" or "detection".
        head: arguments of the head, and how images are evaluated.
    """

    task: str = "segmentation"
    head: dict[str, Any] = field(default_factory=dict)

    @property
    def title(self) -> str:
        return f"{self.head['name']} on {super().title}"

    def to_metadata(self) -> dict[str, str]:
        return super().to_metadata() | {"task": self.task, "head": json.dumps(self.head)}

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, str]) -> "DenseCard | None":
        """The card in the metadata of a file; None where there is none, or one of a classifier.

        Raises:
            CardError: there is one, and it is damaged.
        """
        if metadata.get("task") not in TASKS:
            return None
        base = ModelCard.from_metadata(metadata)
        try:
            head = json.loads(metadata.get("head", ""))
        except (ValueError, RecursionError):
            head = None
        if base is None or not base.classes or not isinstance(head, dict):
            raise CardError("the metadata of these weights is damaged; write the weights again")
        if base.input_size[0] != 3:
            raise CardError(f"input_size={base.input_size} is not of images in colour; write the weights again")
        check_head(head, metadata["task"])
        values = {item.name: getattr(base, item.name) for item in fields(ModelCard)}
        return cls(**values, task=metadata["task"], head=head)


def plain(value: Any) -> Any:
    """Arguments as JSON keeps them: mappings as dictionaries, sequences as lists."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value
