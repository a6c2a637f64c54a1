"""`sightline download`: download published weights into the cache."""

import sys
import warnings
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from sightline.cli.options import Command, option, positional
from sightline.cli.output import print_json
from sightline.util.errors import FileError
from sightline.util.text import one_line, say

if TYPE_CHECKING:
    from sightline.models.weights.published import Cached

ALL = "all"


@dataclass(frozen=True)
class Options:
    """Download published weights, so that `pretrained=True` and `--model.pretrained true` find them.

    They go to SIGHTLINE_HOME, or to the folder of torch.hub. Interrupted downloads resume. A file is read as data only
    and must have exactly the tensors of its model; its SHA-256 is kept next to it and compared whenever it is used.
    """

    names: tuple[str, ...] = positional("models with weights in `sightline list`, or all")
    to: str | None = option("folder to download to instead of the cache", metavar="FOLDER")
    json: bool = option("print JSON", default=False)


def run(options: Options) -> int:
    """Download one after the other and print where each file is; what fails does not stop the others."""
    from sightline.models.factory import download, variant_name
    from sightline.models.weights.published import PUBLISHED, published_weights

    names = list(PUBLISHED) if options.names == (ALL,) else list(dict.fromkeys(options.names))
    for name in names:  # before the first byte
        published_weights(variant_name(name))
    files, failed = [], 0
    for name in names:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the licence is printed below
                files.append(download(name, options.to))
            if not options.json:
                _print(files[-1])
        except FileError as error:
            if len(names) == 1:
                raise
            failed += 1
            say(f"sightline: error: {one_line(error)}", file=sys.stderr)
    if options.json:
        print_json([{**asdict(file), "path": str(file.path)} for file in files])
    if failed:
        raise FileError(f"{failed} of {len(names)} models could not be downloaded; run it again for these")
    return 0


def _print(file: "Cached") -> None:
    state = "downloaded" if file.downloaded else "already there"
    say(
        f"{file.name}: {state}, {file.path.stat().st_size / 1e6:.1f} MB, sha256 {file.sha256}",
        f"  licence  {file.licence}",
        f"  file     {file.path}",
    )


COMMAND = Command(
    Options,
    run,
    help="download published weights",
    examples=(
        "  sightline download inline_swin_tiny\n"
        "  sightline download soft_tiny soft_norm_tiny --to weights\n"
        "  sightline download all"
    ),
)
