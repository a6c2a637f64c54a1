"""The common frame of the instruments of `sightline analyze`: load, look at the images, write."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sightline.cli.analyze_images import Gallery, Prepared, open_gallery
from sightline.cli.analyze_models import Loaded, load_models
from sightline.cli.analyze_options import Models, Output, Pictures, check_output
from sightline.cli.analyze_output import about, finish
from sightline.cli.options import UsageError

if TYPE_CHECKING:
    import torch

    from sightline.analysis.studies import Study, Subject

    Work = Callable[[Sequence[Subject], Callable[[], None]], Sequence[Study]]


def begin(options: Output) -> "torch.device":
    """The device, after what can be refused at once."""
    import torch

    from sightline.analysis.figures import new_figure
    from sightline.util.device import choose_device

    check_output(options)
    new_figure(1, 1)  # says what to install
    if options.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = choose_device(options.device, "--device")
    if device.type not in ("cpu", "cuda"):
        raise UsageError(f"--device: {options.device!r} has no float64; give cpu or cuda")
    return device


def look(what: str, options: Pictures, work: "Work", check: Callable[[Sequence[Loaded]], None] | None = None) -> None:
    """Run an instrument over models and images, and write what it gives."""
    device = begin(options)
    models = load_models(options, device)
    if check is not None:
        check(models)
    gallery = open_gallery(options.data, first(options), options.limit)
    with ticking(what, len(gallery) * len(models)) as tick, failing(models):
        studies = work(subjects_of(models, gallery, device), tick)
    finish(options.out, about(what, device, models, gallery.names), studies, models, options.json)


def first(options: Models) -> str | None:
    """The checkpoint whose run knows its images."""
    return options.checkpoint[0] if options.checkpoint else None


def subjects_of(models: Sequence[Loaded], gallery: Gallery, device: "torch.device") -> "list[Subject]":
    from sightline.analysis.studies import Subject

    return [Subject(item.title, item.model, Prepared(gallery, item, device)) for item in models]


@contextmanager
def ticking(title: str, total: int) -> Iterator[Callable[[], None]]:
    """A bar on a terminal; gives what moves it on."""
    from sightline.cli.output import bar

    with bar(total, title) as advance:
        yield lambda: advance(1)


@contextmanager
def failing(models: Sequence[Loaded]) -> Iterator[None]:
    """A model that cannot take the images is bad input, not a bug: one line."""
    try:
        yield
    except (RuntimeError, AssertionError) as error:
        sizes = ", ".join(sorted({"x".join(map(str, item.card.input_size[1:])) for item in models}))
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise UsageError(f"a model failed on images of {sizes}: {reason}; give another --img-size") from error
