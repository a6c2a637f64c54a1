"""A real browser for the tests of the page, and a server in this process with a small model behind it."""

import io
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from PIL import Image

from sightline.engine.checkpoint import write_weights
from sightline.tasks.card import ModelCard
from sightline.tasks.create import create

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
ARGS = {"embed_dims": 16, "num_heads": 2, "depths": 3, "patch_size": 8, "img_size": 64, "num_classes": 3}
MECHANISMS = ("inline", "softmax", "linear")


def tiny_weights(path: Path) -> Path:
    """A classifier of three blocks with two heads, on 8 x 8 patches."""
    torch.manual_seed(0)
    model = create("inline_deit_tiny", ARGS)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    write_weights(path, model, ModelCard("inline_deit_tiny", ARGS, ("cat", "<b>dog</b>", "cup"), (3, 64, 64)))
    return path


@contextmanager
def serving(weights: Path) -> Iterator[str]:
    """The address of a server with three mechanisms side by side."""
    pytest.importorskip("starlette", reason="pip install sightline[explore]")
    uvicorn = pytest.importorskip("uvicorn", reason="pip install sightline[explore]")
    from sightline.explorer.models import Models
    from sightline.explorer.server import application, listen
    from sightline.explorer.session import Session

    session = Session(Models([str(weights)], MECHANISMS), None, MECHANISMS, (64, 64))
    opened = listen("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(application(session), log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [opened]}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{opened.getsockname()[1]}/"
    finally:
        server.should_exit = True
        thread.join(10)


@contextmanager
def chromium() -> "Iterator[Browser]":
    """Debian's chromium, or a skip that says what is missing."""
    api = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
    if CHROMIUM is None:
        pytest.skip("no chromium: apt-get install chromium")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


def png(width: int = 48, height: int = 32) -> bytes:
    """A small image file."""
    out = io.BytesIO()
    Image.linear_gradient("L").resize((width, height)).convert("RGB").save(out, "PNG")
    return out.getvalue()


def state(page: "Page") -> dict[str, str]:
    """What the address of the page says."""
    page.wait_for_timeout(250)  # it is written a moment after the last change
    return dict(part.split("=", 1) for part in page.url.partition("#")[2].split("&") if part)


def drawn(page: "Page") -> list[Any]:
    """The pictures of all panels, once none of them waits for an answer."""
    page.wait_for_function("() => !document.querySelector('.panel[aria-busy=true]')")
    return page.evaluate("[...document.querySelectorAll('.stage canvas')].map((canvas) => canvas.toDataURL())")


def ready(page: "Page", panels: int) -> None:
    """Wait until so many panels show the map of the query, and none of them waits for an answer."""
    page.wait_for_function(
        """(count) => document.querySelectorAll(".panel:not(.busy) .head").length >= count
        && !document.querySelector(".panel[aria-busy=true]")""",
        arg=2 * panels,
    )
