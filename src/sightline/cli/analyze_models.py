"""The models that `sightline analyze` looks at: trained or random ones, under one mechanism or several."""

import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sightline.cli.analyze_options import MODEL, Models
from sightline.cli.classifier import load_classifier
from sightline.cli.models import check_model_args, known, parse_model_args
from sightline.cli.options import UsageError
from sightline.util.names import parse_sizes

if TYPE_CHECKING:
    import torch
    from torch import nn

    from sightline.tasks.card import ModelCard


@dataclass(frozen=True)
class Loaded:
    """A model, what it is called, how its images are prepared, and where its weights are from.

    Args:
        replaced: whether the mechanism is another one than the weights were trained with.
        fresh: tensors that kept random values because the checkpoint has none that fit.
        named: whether the outputs have names.
    """

    title: str
    name: str
    model: "nn.Module"
    card: "ModelCard"
    checkpoint: str | None
    attention: str | None
    seed: int
    replaced: bool = False
    fresh: tuple[str, ...] = ()
    named: bool = False

    @property
    def warning(self) -> str | None:
        """What must be said of its weights."""
        if self.checkpoint is None:
            return f"{self.title}: the weights are RANDOM (seed {self.seed}); nothing here was learned"
        if not self.replaced:
            return None
        said = f"{self.title}: the weights were trained with another mechanism"
        if self.fresh:
            said += f", and {len(self.fresh)} that do not fit are RANDOM (seed {self.seed}), such as {self.fresh[0]}"
        return said

    def facts(self) -> dict[str, Any]:
        return {
            "title": self.title, "model": self.name, "checkpoint": self.checkpoint, "attention": self.attention,
            "random": self.checkpoint is None, "replaced": self.replaced, "seed": self.seed,
            "random_tensors": list(self.fresh), "input_size": list(self.card.input_size),
        }  # fmt: skip


def load_models(options: Models, device: "torch.device", classes: int | None = None) -> list[Loaded]:
    """Every checkpoint under every mechanism; `classes` is for models with random weights."""
    from sightline.analysis.capture import attention_blocks

    sources: tuple[str | None, ...] = options.checkpoint or (None,)
    found = []
    for source in sources:
        base = _load(source, options, classes) if source is not None or not options.attention else None
        for attention in options.attention or (None,):
            if attention is None:
                assert base is not None
                found.append(base)
            elif base is None:
                found.append(_random(options, classes, attention))
            else:
                found.append(_retarget(base, attention, options.seed))
    found = _titled(found, len(sources), len(options.attention))
    for item in found:
        item.model.eval().to(device)
        if not attention_blocks(item.model):
            raise UsageError(f"{item.name} has no attention blocks of sightline; choose a model of `sightline list`")
    return found


def _load(source: str | None, options: Models, classes: int | None) -> Loaded:
    from sightline.tasks.classification.preprocess import at_size

    if source is None:
        return _random(options, classes)
    given = load_classifier(source, options.model, parse_model_args(options.model_args))
    card = given.card
    if options.img_size is not None:
        card = at_size(card, parse_sizes((options.img_size,))[0])
    return Loaded(given.title, given.title, given.model, card, source, None, options.seed, named=given.named)


def _random(options: Models, classes: int | None, attention: str | None = None) -> Loaded:
    """A model without a checkpoint: the same weights every time."""
    from timm.data import resolve_model_data_config

    from sightline.tasks.card import ModelCard

    name = known(options.model or MODEL)
    args = parse_model_args(options.model_args)
    check_model_args(name, args)
    if options.img_size is not None:
        args.setdefault("img_size", parse_sizes((options.img_size,))[0])
    if classes is not None:
        args.setdefault("num_classes", classes)
    if attention is not None:
        args["attention"] = attention
    model: Any = _create(name, args, options.seed)
    usual = resolve_model_data_config(model)
    mean, std = (
        tuple(usual[key]) if len(usual[key]) == model.in_chans else (0.5,) * model.in_chans for key in ("mean", "std")
    )
    size = (model.in_chans, *model.img_size)
    card = ModelCard(name, {}, (), size, mean, std, usual["interpolation"], usual["crop_pct"])
    return Loaded(name, name, model, card, None, attention, options.seed)


def _create(name: str, args: dict[str, Any], seed: int) -> "nn.Module":
    import torch

    from sightline.models.zoo import create

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            return create(name, **args)
        except TypeError as error:
            raise UsageError(f"--model-args: {name} cannot be built: {error}") from error


def _retarget(base: Loaded, attention: str, seed: int) -> Loaded:
    """The same model with another mechanism; weights of the same name and shape are kept."""
    import torch

    from sightline.models.weights.fit import fit_mechanism
    from sightline.models.zoo import VARIANTS

    card = base.card
    if card.name not in VARIANTS:
        raise UsageError(f"--attention: {card.name} is not a model of sightline; leave --attention out")
    source: Any = base.model
    args = {**card.arguments, "attention": attention, "num_classes": source.num_classes, "in_chans": source.in_chans}
    model = _create(card.name, args, seed)
    own, given = model.state_dict(), base.model.state_dict()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is left out is said by the command
        state = fit_mechanism(given, model)
    kept = {key: value for key, value in state.items() if key in own and own[key].shape == value.shape}
    fresh = tuple(key for key in own if key not in kept or (key not in given and torch.equal(kept[key], own[key])))
    model.load_state_dict({**own, **kept})
    replaced = _mechanisms(model) != _mechanisms(base.model)
    return replace(base, model=model, attention=attention, replaced=replaced, fresh=fresh)


def _mechanisms(model: "nn.Module") -> list[str]:
    return [str(module.mechanism) for module in model.modules() if hasattr(module, "mechanism")]


def _titled(found: list[Loaded], sources: int, mechanisms: int) -> list[Loaded]:
    """Titles that tell the models apart, and no more than that."""
    titles = []
    for item in found:
        parts = [item.attention] if mechanisms > 1 and item.attention else []
        if item.checkpoint is not None and (sources > 1 or not parts):
            path = Path(item.checkpoint)
            parts.insert(0, path.resolve().name if path.is_dir() else path.stem)
        titles.append(", ".join(parts) or item.title)
    unique = len(set(titles)) == len(titles)
    return [
        replace(item, title=title if unique else f"{i}: {title}")
        for i, (item, title) in enumerate(zip(found, titles, strict=True), 1)
    ]
