"""Measure `sightline explore` in chromium: the time from a move of the mouse to the drawn frame, p50 and p95.

    python tools/measure_explore.py vit_tiny_augreg_in1k.safetensors --model vit_tiny_patch16_224

Every move goes to a patch that was not asked for before. Three panels; the views and sizes are options. Needs
`apt-get install chromium` and `pip install playwright`, and an otherwise idle machine.
"""

import argparse
import json
import random
from statistics import median

from playwright.sync_api import Page, sync_playwright
from screenshots import chromium, opened, serving

WATCH = """() => {
  window.took = null;
  const pause = () => !document.querySelector(".panel[aria-busy=true]");
  addEventListener("pointermove", (event) => {
    const frame = () => requestAnimationFrame(() => {
      const channel = new MessageChannel();  // its message comes after the frame
      channel.port1.onmessage = () => pause() ? (window.took = performance.now() - event.timeStamp) : frame();
      channel.port2.postMessage(0);
    });
    frame();
  });
}"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", help="weights, or a run folder")
    parser.add_argument("--model", help="the variant, if the weights do not show it")
    parser.add_argument("--sizes", default="224,1024", help="pixels; by default 224,1024")
    parser.add_argument("--views", default="attention", help="by default attention; also local, rollout, confusion")
    parser.add_argument("--moves", type=int, default=60, help="by default 60")
    options = parser.parse_args()
    with serving(options.checkpoint, options.model) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        for size in options.sizes.split(","):
            for view in options.views.split(","):
                page = opened(browser, f"{address}#image=cat&block=5&size={size}x{size}&view={view}", 3)
                row = {"size": int(size), "view": view, **moved(page, options.moves, int(size) // 16)}
                print(json.dumps(row), flush=True)
                page.close()
        browser.close()


def moved(page: Page, moves: int, side: int) -> dict[str, float]:
    """Milliseconds of moves between random patches, and of the server's share of the last of them."""
    page.evaluate(WATCH)
    box = page.locator(".stage canvas").first.bounding_box()
    assert box is not None
    chosen = random.Random(0).sample(range(side * side), moves + 5)
    times = []
    for patch in chosen:
        page.evaluate("() => { window.took = null }")
        down, across = ((part + 0.5) / side for part in divmod(patch, side))
        page.mouse.move(box["x"] + across * box["width"], box["y"] + down * box["height"])
        page.wait_for_function("() => window.took !== null", polling=20, timeout=120_000)
        times.append(page.evaluate("() => window.took"))
        page.wait_for_timeout(120)
    times = sorted(times[5:])
    return {
        "p50_ms": round(median(times), 1), "p95_ms": round(times[int(0.95 * (moves - 1))], 1),
        "most_ms": round(times[-1], 1), "moves": moves,
    }  # fmt: skip


if __name__ == "__main__":
    main()
