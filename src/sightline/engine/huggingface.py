"""Hugging Face: a trained classifier and its card as a folder or repository that timm and transformers read."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

from huggingface_hub import CommitInfo, HfApi, ModelCardData
from huggingface_hub.errors import HfHubHTTPError, HFValidationError
from timm.models import save_for_hf as save_with_timm

from sightline.hub import load, write_tensors
from sightline.tasks.base import Loaded
from sightline.tasks.card import ModelCard
from sightline.util.errors import FileError, InputError
from sightline.util.files import check_writable, jsonable, reason, write_json
from sightline.util.provenance import VERSION

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
# The first base of the hub's errors is that of the HTTP library, of which there is another in other versions.
NETWORK_ERRORS = (cast(type[Exception], HfHubHTTPError.__bases__[0]), HFValidationError, OSError)
README = """---
{data}
---
# {title}

{classes} classes, images of {size}. Arguments, classes and preprocessing are in `config.json`.

```python
import sightline, timm  # pip install sightline

model = timm.create_model("hf-hub:{repo}", pretrained=True).eval()
```
"""


def save_for_hf(source: Loaded | str | Path, folder: str | Path) -> Path:
    """Write a trained classifier as a folder for timm, transformers and the Hugging Face hub.

    `config.json` gets the model, its arguments (`attention` and all others), the names of the classes, and the size,
    mean, deviation, interpolation and crop of the images. `model.safetensors` gets the card too, so that
    `sightline.load(folder)` opens it.

    Args:
        source: a run folder, a file of weights, or what `sightline.load` returned.
        folder: to write.

    Raises:
        InputError: the folder cannot be written, or the model is not a classifier of images.
        FileError: the source cannot be read.

    Example:
        >>> import sightline, timm
        >>> sightline.save_for_hf("runs/quick", "for_hf").name
        'for_hf'
        >>> model = timm.create_model("local-dir:for_hf", pretrained=True)
    """
    loaded, card = _classifier(source)
    check_writable(folder, "folder")
    model, model_args = loaded.model, {key: value for key, value in card.arguments.items() if key != "num_classes"}
    own: dict[str, Any] = getattr(model, "pretrained_cfg", {})
    description: dict[str, Any] = {
        **{key: own[key] for key in ("pool_size", "first_conv", "classifier", "crop_mode") if key in own},
        **{key: getattr(card, key) for key in ("input_size", "mean", "std", "interpolation", "crop_pct")},
        "architecture": card.name.partition(".")[0],
    }
    model.pretrained_cfg = description  # type: ignore[assignment]
    names = {"label_names": list(card.classes)} if card.classes else {}
    save_with_timm(model, str(folder), names, jsonable(model_args), safe_serialization=True)
    _leave_classes_to_the_reader(Path(folder) / CONFIG)
    write_tensors(Path(folder) / WEIGHTS, model.state_dict(), card.to_metadata())
    return Path(folder)


def push_to_hf_hub(
    source: Loaded | str | Path,
    repo_id: str,
    *,
    token: str | None = None,
    private: bool = False,
    revision: str | None = None,
    commit_message: str = "Add model",
    create_pr: bool = False,
    licence: str = "unknown",
) -> CommitInfo:
    """Upload a trained classifier to the Hugging Face hub; timm and transformers read it as "hf-hub:`repo_id`".

    Args:
        source: a run folder, a file of weights, or what `sightline.load` returned.
        repo_id: "owner/name"; created if missing.
        token, private, revision, commit_message, create_pr: as in huggingface_hub.
        licence: of the weights, as the hub abbreviates it ("mit", "apache-2.0"), for the README if there is none yet.

    Raises:
        InputError, FileError: as in `save_for_hf`, or the hub rejects the upload.
    """
    loaded, card = _classifier(source)
    api = HfApi(token=token, library_name="sightline", library_version=VERSION)
    try:
        repo = api.create_repo(repo_id, private=private, exist_ok=True).repo_id
        with TemporaryDirectory() as folder:
            save_for_hf(loaded, folder)
            if not api.file_exists(repo, "README.md", revision=revision):
                (Path(folder) / "README.md").write_text(_readme(card, repo, licence), encoding="utf-8")
            return api.upload_folder(
                repo_id=repo,
                folder_path=folder,
                revision=revision,
                commit_message=commit_message,
                create_pr=create_pr,
            )
    except NETWORK_ERRORS as error:
        remedy = "check the name, the token and the connection"
        raise FileError(f"{repo_id}: cannot be uploaded ({reason(error)}); {remedy}") from error


def _classifier(source: Loaded | str | Path) -> tuple[Loaded, ModelCard]:
    loaded = source if isinstance(source, Loaded) else load(source)
    if not isinstance(loaded.card, ModelCard):
        raise InputError(f"source: {loaded.path} is for {loaded.task}; timm and transformers read classifiers")
    return loaded, loaded.card


def _leave_classes_to_the_reader(path: Path) -> None:
    """Leave the number of classes at the top of the file alone: transformers passes it beside the arguments."""
    config = json.loads(path.read_text(encoding="utf-8"))
    config.get("model_args", {}).pop("num_classes", None)  # timm writes it there since 1.0.31
    write_json(path, config)


def _readme(card: ModelCard, repo: str, licence: str) -> str:
    data = ModelCardData(
        license=licence,
        library_name="timm",
        pipeline_tag="image-classification",
        tags=["image-classification", "timm", "transformers", "sightline"],
    )
    size = "x".join(map(str, card.input_size[1:]))
    classes = len(card.classes) or card.arguments.get("num_classes", 1000)
    return README.format(data=data.to_yaml(), title=card.title, classes=classes, size=size, repo=repo)
