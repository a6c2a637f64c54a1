"""`sightline explore`: look inside the attention of models, side by side, in a browser."""

import secrets
import socket
import threading
import webbrowser
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from sightline.models.base import Arguments
from sightline.util.device import choose_device
from sightline.util.errors import InputError
from sightline.util.files import write_result
from sightline.util.schema import both_sides
from sightline.util.text import say

if TYPE_CHECKING:
    from sightline.explorer.session import Session

LOCAL = "127.0.0.1"
EVERYWHERE = ("0.0.0.0", "::")


def explore(
    image: str | Path | None = None,
    checkpoint: str | Path | Sequence[str | Path] = (),
    *,
    attention: str | Sequence[str] = (),
    model: str | None = None,
    model_args: Arguments | None = None,
    img_size: int | Sequence[int] | None = None,
    out: str | Path | None = None,
    host: str = LOCAL,
    port: int = 0,
    browser: bool = True,
    device: str = "cpu",
) -> None:
    """Open a page that shows what the attention of models does with an image, up to three side by side.

    Returns when it is interrupted (Ctrl-C). Needs `pip install sightline[explore]`.

    Args:
        image: a file to start with; by default a sample of the package.
        checkpoint: run folders or files of weights. Without one, the model in the package; with `model` or
            `model_args`, published weights that were downloaded before, else random ones. The page says which.
        attention: mechanisms to put into every model, keeping the weights that fit.
        model, model_args: the variant and its arguments, if a checkpoint leaves them open or there is none; a vision
            transformer of timm opens its weights.
        img_size: pixels, one number or (height, width); by default as trained.
        out: write a page without a server to this file instead.
        host, port: where to listen; on another address than 127.0.0.1 the page has a token in its address.
        browser: open the browser.
        device: where models run.

    Raises:
        InputError: an argument cannot be used, or a package is missing.
        FileError: a file cannot be read.
    """
    from sightline.explorer.models import Models
    from sightline.explorer.session import Session

    def session() -> Session:
        paths = [str(item) for item in ([checkpoint] if isinstance(checkpoint, str | Path) else checkpoint)]
        names = [attention] if isinstance(attention, str) else list(attention)
        models = Models(paths, names, model, model_args, choose_device(device, "device"))
        return Session(models, None if image is None else str(image), names, both_sides("img_size", img_size))

    if out is None:
        _serve(session, host, port, browser)
    else:
        _write(session, Path(out))


def _serve(session: "Callable[[], Session]", host: str, port: int, browser: bool) -> None:
    """Answer requests until an interrupt."""
    try:
        from sightline.explorer.server import application, listen, serve
    except ImportError as error:
        raise InputError("explore needs starlette and uvicorn: pip install sightline[explore]") from error
    token = "" if host == LOCAL else secrets.token_urlsafe(16)
    with listen(host, port) as opened:
        app = application(session(), token)
        name = socket.gethostname() if host in EVERYWHERE else f"[{host}]" if ":" in host else host
        address = f"http://{name}:{opened.getsockname()[1]}/" + (f"{token}/" if token else "")

        def started() -> None:
            say(f"{address} (Ctrl-C ends it)")
            if browser:
                threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()

        with suppress(KeyboardInterrupt):
            serve(app, opened, started)


def _write(session: "Callable[[], Session]", out: Path) -> None:
    """Write a page without a server."""
    from sightline.explorer.page import check_tokens, page

    if out.suffix.lower() not in (".html", ".htm") or out.is_dir() or not out.parent.is_dir():
        raise InputError(f"out: expected a file that ends in .html, in a folder that exists; got {str(out)!r}")
    found = session()
    for wanted in found.start:
        check_tokens(found.models.find(wanted.model, wanted.attention), wanted.size)
    text = page(found, [found.panel(wanted)["id"] for wanted in found.start])
    write_result(out, lambda path: path.write_text(text, encoding="utf-8"))
    say(f"wrote {out} ({len(text) / 1e6:.1f} MB)")
