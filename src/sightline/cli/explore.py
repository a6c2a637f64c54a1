"""`sightline explore`: look inside attention in a browser."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from sightline.cli.options import Command, model_arguments, option, positional
from sightline.util.schema import ModelArgs, Natural, Size


@dataclass(frozen=True)
class Options:
    """Look inside the attention of models, up to three side by side, in a browser on this machine.

    Hover over a patch of the image: its row of the attention matrix appears on every panel. With --out, one file with
    everything in it is written instead, which opens anywhere without a server.
    """

    image: str | None = positional("an image file; by default a sample", optional=True)
    checkpoint: tuple[str, ...] = option(
        "run folder or file of weights; can be repeated. Without one, the model in the package; with --model or "
        "--model-args, published weights that were downloaded before, else random ones",
        default=(), metavar="PATH",
    )  # fmt: skip
    attention: tuple[str, ...] = option(
        "put this mechanism into the model, keeping the weights that fit; can be repeated to compare several",
        default=(), metavar="NAME",
    )  # fmt: skip
    model: str | None = option(
        "the model, if the weights do not show it; also a vision transformer of timm", metavar="NAME"
    )
    model_args: ModelArgs = model_arguments()
    img_size: Size | None = option("pixels, 224 or 384x640 (height x width); by default as trained", metavar="SIZE")
    out: str | None = option("write a page with everything in it to this file, and start no server", metavar="FILE")
    port: Annotated[Natural, Field(le=65535)] = option("by default one that is free", default=0, metavar="N")
    host: str = option(
        "address to listen on; by default 127.0.0.1, which only this machine reaches",
        default="127.0.0.1", metavar="ADDRESS",
    )  # fmt: skip
    no_browser: bool = option("do not open the browser", default=False)
    device: str = option("cpu, cuda, mps; by default cpu", default="cpu", metavar="NAME")


def run(options: Options) -> None:
    """Start the server, or write the page."""
    from sightline.explorer import explore

    explore(
        options.image, options.checkpoint, attention=options.attention, model=options.model,
        model_args=options.model_args, img_size=options.img_size, out=options.out, host=options.host,
        port=options.port, browser=not options.no_browser, device=options.device,
    )  # fmt: skip


COMMAND = Command(
    Options,
    run,
    help="look inside attention in a browser, mechanisms side by side",
    examples=(
        "  sightline explore\n"
        "  sightline explore photo.jpg --checkpoint runs/quick --attention inline --attention softmax\n"
        "  sightline explore --checkpoint vit.safetensors --model vit_tiny_patch16_224\n"
        "  sightline explore photo.jpg --checkpoint runs/quick --out page.html"
    ),
)
