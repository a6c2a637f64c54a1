"""Make the pictures of docs/explore.md and the README: `sightline explore` on a sample photograph, in chromium.

    python tools/screenshots.py vit_tiny_augreg_in1k.safetensors --model vit_tiny_patch16_224

Needs `apt-get install chromium` and `pip install playwright`. Times on the pictures are those of this machine.
"""

import argparse
import io
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page, ViewportSize, sync_playwright

FOLDER = Path(__file__).parents[1] / "docs" / "images"
MECHANISMS = ("inline", "softmax", "linear")
EYE = "image=cat&block=5&query=0.36,0.32&pinned=1"  # a patch of the left eye, in the middle of the network
SCREEN = ViewportSize(width=1280, height=720)
PHONE = ViewportSize(width=390, height=844)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint", help="weights, or a run folder")
    parser.add_argument("--model", help="the variant, if the weights do not show it")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder; by default docs/images")
    options = parser.parse_args()
    with serving(options.checkpoint, options.model) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        page = opened(browser, f"{address}#{EYE}", 3)
        save(page.screenshot(), options.out / "explore-panels.png")
        with page.expect_download() as download:
            page.click("#png")
        save(download.value.path().read_bytes(), options.out / "explore.png", width=1600)
        page = opened(browser, f"{address}#{EYE}&view=confusion&score=0.3", 3, "dark")
        save(page.screenshot(), options.out / "explore-confusion.png")
        large = "image=palace&size=768x1024&panels=m0~inline&block=2&head=0&query=0.32,0.38&pinned=1"
        page = opened(browser, f"{address}#{large}", 1)
        save(page.screenshot(), options.out / "explore-large.png")
        page = opened(browser, f"{address}#{EYE}&panels=m0~inline", 1, screen=PHONE)
        save(page.screenshot(), options.out / "explore-phone.png")
        browser.close()


def chromium() -> str:
    """The path of the browser."""
    found = shutil.which("chromium") or shutil.which("google-chrome")
    if found is None:
        sys.exit("no chromium: apt-get install chromium")
    return found


@contextmanager
def serving(checkpoint: str, model: str | None) -> Iterator[str]:
    """The address of a server with the three mechanisms."""
    command = [sys.executable, "-m", "sightline", "explore", "--no-browser", "--checkpoint", checkpoint]
    command += [word for name in MECHANISMS for word in ("--attention", name)]
    command += ["--model", model] if model else []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            while not (line := server.stdout.readline()).startswith("http"):
                if not line:
                    sys.exit("the server did not start")
            yield line.split()[0]
        finally:
            server.terminate()


def opened(browser: Browser, address: str, panels: int, scheme: str = "light", screen: ViewportSize = SCREEN) -> Page:
    """The page, once all panels show a map."""
    context = browser.new_context(viewport=screen, device_scale_factor=1.25, color_scheme=scheme, accept_downloads=True)
    page = context.new_page()
    page.goto(address)
    wanted = (
        "(count) => [...document.querySelectorAll('.value')].filter((each) => each.textContent.trim()).length >= count"
    )
    page.wait_for_function(wanted, arg=panels, timeout=120_000)
    page.wait_for_timeout(500)
    return page


def save(data: bytes, path: Path, width: int | None = None) -> None:
    """Write a small PNG file, of a given width."""
    image = Image.open(io.BytesIO(data)).convert("RGB")
    if width is not None:
        image = image.resize((width, round(image.height * width / image.width)), Image.Resampling.LANCZOS)
    image.save(path, optimize=True)
    print(f"{path} ({path.stat().st_size >> 10} kB)")


if __name__ == "__main__":
    main()
