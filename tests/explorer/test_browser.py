"""The page in a real browser: hover, compare, drop an image, change everything, share, download."""

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from PIL import Image

from .browser import chromium, drawn, png, ready, serving, state, tiny_weights

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("browser")]
DROP = """([name, data]) => {
  const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0)), transfer = new DataTransfer();
  transfer.items.add(new File([bytes], name));
  document.body.dispatchEvent(new DragEvent("drop", { dataTransfer: transfer, bubbles: true, cancelable: true }));
}"""


@pytest.fixture(scope="module")
def browser() -> "Iterator[Browser]":
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def address(browser: "Browser", tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(tiny_weights(tmp_path_factory.mktemp("weights") / "tiny.safetensors")) as found:
        yield found


@pytest.fixture
def page(browser: "Browser", address: str) -> "Iterator[Page]":
    """The page with three panels; an error in a script fails the test."""
    context = browser.new_context(viewport={"width": 1280, "height": 720}, accept_downloads=True)
    context.grant_permissions(["clipboard-read", "clipboard-write"], origin=address.rstrip("/"))
    page = context.new_page()
    page.set_default_timeout(30_000)  # on a busy machine
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(address)
    ready(page, 3)
    yield page
    context.close()
    assert not errors


def hover(page: "Page", down: float, across: float, panel: int = 0) -> None:
    box = page.locator(".stage canvas").nth(panel).bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + across * box["width"], box["y"] + down * box["height"])


def values(page: "Page", patch: str) -> list[str]:
    """The numbers under the pointer, once all panels show those of a patch."""
    page.wait_for_function(
        """(start) => !document.querySelector(".panel[aria-busy=true]") &&
        [...document.querySelectorAll(".value")].every((each) => each.textContent.startsWith(start))""",
        arg=f"patch {patch}:",
    )
    return page.locator(".value").all_text_contents()


def query(page: "Page") -> list[float]:
    return [float(part) for part in state(page)["query"].split(",")]


def test_hover_shows_the_row_on_every_panel(page: "Page") -> None:
    hover(page, 0.2, 0.3)
    first = values(page, "1,2")
    pictures = drawn(page)
    hover(page, 0.8, 0.55, panel=2)
    second = values(page, "6,4")
    assert len({*second, *first}) == 6  # three mechanisms, three weights
    assert all(a != b for a, b in zip(pictures, drawn(page), strict=True))
    assert "even" in second[0]
    assert query(page) == pytest.approx([0.8, 0.55], abs=0.01)


def test_click_holds_the_query(page: "Page") -> None:
    hover(page, 0.2, 0.3)
    values(page, "1,2")
    page.mouse.down()
    page.mouse.up()
    hover(page, 0.9, 0.9)
    values(page, "7,7")  # of the key under the pointer
    assert query(page) == pytest.approx([0.2, 0.3], abs=0.01)
    assert state(page)["pinned"] == "1"
    page.keyboard.press("Escape")
    hover(page, 0.7, 0.7)
    assert query(page) == pytest.approx([0.7, 0.7], abs=0.01)


def test_keys(page: "Page") -> None:
    hover(page, 0.2, 0.3)
    values(page, "1,2")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    values(page, "2,3")
    page.keyboard.press("1")
    page.keyboard.press("[")
    assert (state(page)["head"], state(page)["block"]) == ("1", "0")
    assert page.locator(".head[aria-pressed=true]").all_text_contents() == ["1"] * 3
    page.keyboard.press("m")
    page.keyboard.press("PageDown")
    assert (state(page)["head"], state(page)["block"]) == ("mean", "1")
    page.keyboard.press(" ")
    page.wait_for_function("() => document.getElementById('block').value === '2'")
    page.keyboard.press(" ")
    assert page.get_attribute("#play", "aria-pressed") == "false"


def test_views(page: "Page") -> None:
    hover(page, 0.2, 0.3)
    values(page, "1,2")
    row = drawn(page)
    page.click("#views :text('Local')")
    page.wait_for_function("() => document.querySelectorAll('.notice:not([hidden])').length === 2")  # not InLine's
    assert drawn(page)[0] != row[0]
    page.click("#views :text('Rollout')")
    page.wait_for_function("() => document.querySelectorAll('.notice:not([hidden])').length === 0")
    assert page.is_disabled("#block")
    page.click("#views :text('Confusion')")
    page.wait_for_function(
        "() => [...document.querySelectorAll('.value')].every((each) => /^\\d+ of 63 patches/.test(each.textContent))"
    )
    page.click("#views :text('Attention')")
    page.click("#class")
    page.wait_for_function("() => document.querySelector('.value').textContent.startsWith('Σ')")
    assert state(page)["query"] == "class"


def test_panels_and_predictions(page: "Page") -> None:
    labels = page.locator(".panel").first.locator(".top span").all_text_contents()
    assert set(labels) == {"cat", "<b>dog</b>", "cup"}  # as text
    assert page.locator(".bars").first.locator("button").count() == 3
    page.locator(".bars").first.locator("button").first.click()
    assert state(page)["block"] == "0"
    page.locator(".remove").nth(1).click()
    assert state(page)["panels"] == "m0~inline,m0~linear"
    page.locator(".attention").nth(1).select_option("softmax")
    ready(page, 2)
    page.click("#add")
    ready(page, 3)
    assert state(page)["panels"].startswith("m0~inline,m0~softmax,m0~")
    assert page.is_hidden("#add")


def test_drop_an_image(page: "Page") -> None:
    page.evaluate(DROP, ["<i>mine.png", base64.b64encode(png()).decode()])
    page.wait_for_function("() => document.querySelector('#image').selectedOptions[0]?.textContent.includes('<i>mine')")
    ready(page, 3)
    assert "image=&" in page.url + "&"  # what is on this machine only is no part of the address
    page.evaluate(DROP, ["broken.png", base64.b64encode(b"no image").decode()])
    page.wait_for_selector("#message:not([hidden])")
    assert "\n" not in page.locator("#message span").inner_text().strip()
    hover(page, 0.8, 0.55)
    values(page, "6,4")  # the page is alive


def test_a_query_while_a_panel_loads(page: "Page") -> None:
    """It is answered for the mechanism that was on its way."""
    panels: list[Route] = []
    rows: list[Route] = []
    page.route("**/api/panels", lambda route: panels.append(route))
    page.locator(".attention").first.select_option("soft")
    page.wait_for_selector(".panel.busy")
    page.route("**/api/together?*", lambda route: rows.append(route))
    hover(page, 0.8, 0.55)
    page.wait_for_timeout(300)
    page.unroute("**/api/together?*")
    assert (len(panels), len(rows)) == (1, 1)
    panels[0].continue_()
    page.wait_for_function("() => !document.querySelector('.panel.busy')")
    rows[0].continue_()
    values(page, "6,4")


def test_sizes(page: "Page") -> None:
    page.select_option("#size", "224x224")
    page.wait_for_function("() => document.querySelector('.facts').textContent.includes('28 \\u00d7 28')")
    page.select_option("#size", "other")
    page.fill("#other", "64x96")
    page.press("#other", "Enter")
    page.wait_for_function(
        """() => [...document.querySelectorAll(".facts")].every((each) =>
        /8 \\u00d7 12 .* forward [\\d.]+ ms · row [\\d.]+ ms · (inline|softmax|linear)/.test(each.textContent))"""
    )
    box = page.locator(".stage canvas").first.bounding_box()
    assert box is not None
    assert box["width"] / box["height"] == pytest.approx(1.5, abs=0.02)
    page.select_option("#size", "other")
    page.fill("#other", "9000x1")
    page.press("#other", "Enter")
    page.wait_for_selector("#message:not([hidden])")


def test_share(page: "Page") -> None:
    hover(page, 0.2, 0.3)
    page.mouse.down()
    page.mouse.up()
    page.keyboard.press("1")
    page.keyboard.press("[")
    page.mouse.move(5, 5)
    shown = values(page, "1,2")
    page.click("#share")
    shared = page.evaluate("navigator.clipboard.readText()")
    assert shared == page.url
    other = page.context.new_page()
    other.goto(shared)
    ready(other, 3)
    assert values(other, "1,2") == shown
    other.evaluate("location.hash = 'block=nonsense&panels=%E0%A4%A&query=9,9&head=-3&view=<b>'")  # is ignored
    assert values(other, "1,2") == shown
    other.evaluate("location.hash = 'block=-7&size=1x99999&image=&panels=m9~none,,,&score=7'")
    other.wait_for_selector("#message:not([hidden])")
    other.evaluate(f"location.hash = {shared.partition('#')[2]!r}")
    assert values(other, "1,2") == shown  # the page is alive


def test_download_picture(page: "Page", tmp_path: Path) -> None:
    with page.expect_download() as download:
        page.click("#png")
    download.value.save_as(tmp_path / "panels.png")
    with Image.open(tmp_path / "panels.png") as image:
        assert image.width > 2.2 * image.height  # three panels
        assert len(image.convert("L").getcolors(1 << 16) or []) > 20


def test_page_without_a_server(page: "Page", tmp_path: Path) -> None:
    hover(page, 0.2, 0.3)
    page.mouse.down()
    page.mouse.up()
    page.keyboard.press("[")
    page.mouse.move(5, 5)
    shown = values(page, "1,2")
    with page.expect_download() as download:
        page.click("#page")
    download.value.save_as(tmp_path / "page.html")
    context = page.context.browser.new_context(offline=True) if page.context.browser else None
    assert context is not None
    other = context.new_page()
    asked: list[str] = []
    other.on("request", lambda request: asked.append(request.url))
    other.goto((tmp_path / "page.html").as_uri())
    ready(other, 3)
    assert values(other, "1,2") == shown  # it starts with the same view
    for view in ("Local", "Rollout", "Confusion"):
        other.click(f"#views :text('{view}')")
    other.wait_for_function("() => document.querySelector('.value').textContent.includes(' of 63 patches')")
    assert all(url.startswith(("file:", "data:", "blob:")) for url in asked)
    assert other.is_hidden("#message")
    context.close()


def test_only_the_newest_query_is_asked_for(page: "Page") -> None:
    page.evaluate("""() => {
      const plain = window.fetch;
      window.asked = 0;
      window.fetch = async (...all) => {
        window.asked += 1;
        await new Promise((done) => setTimeout(done, 100));
        return plain(...all);
      };
    }""")
    page.evaluate("""() => {
      const canvas = document.querySelector(".stage canvas"), box = canvas.getBoundingClientRect();
      for (let i = 0; i < 64; i++) {
        const [x, y] = [(i % 8 + 0.5) / 8, (Math.floor(i / 8) + 0.5) / 8];
        const place = { clientX: box.left + x * box.width, clientY: box.top + y * box.height };
        canvas.dispatchEvent(new PointerEvent("pointermove", place));
      }
    }""")
    values(page, "7,7")
    page.wait_for_timeout(400)
    assert page.evaluate("window.asked") == 2  # the first and the last of 64, for all panels at once


def test_a_failed_request_is_one_line(page: "Page") -> None:
    page.route("**/together?*", lambda route: route.abort())
    hover(page, 0.2, 0.3)
    page.wait_for_selector("#message:not([hidden])")
    page.unroute("**/together?*")
    page.click("#message button")
    hover(page, 0.8, 0.55)
    values(page, "6,4")
    assert page.is_hidden("#message")


def test_fits_the_screen(page: "Page") -> None:
    overflow = (
        "[document.documentElement.scrollWidth - innerWidth, document.documentElement.scrollHeight - innerHeight]"
    )
    for panels in (3, 2, 1):
        assert page.evaluate(overflow) == [0, 0]
        assert min(box["height"] for box in boxes(page)) > 250
        if panels > 1:
            page.locator(".remove").last.click()
    page.set_viewport_size({"width": 390, "height": 844})
    page.wait_for_timeout(100)
    assert page.evaluate(overflow)[0] == 0
    (box,) = boxes(page)
    assert box["width"] > 280
    assert box["y"] + box["height"] < 600  # above the controls
    for view, hidden in (("attention", {"score"}), ("confusion", {"scale"})):
        page.click(f"#views :text-is('{view.title()}')")
        out = """[...document.querySelectorAll("header.bar :is(button, select), footer :is(button, select, input)")]
          .filter((each) => { const box = each.getBoundingClientRect();
            return box.width < 10 || box.left < 0 || box.right > innerWidth || box.bottom > innerHeight })
          .map((each) => each.id)"""
        assert set(page.evaluate(out)) <= {*hidden, "class"}  # no class token, no button


def boxes(page: "Page") -> list[dict[str, float]]:
    found = [canvas.bounding_box() for canvas in page.locator(".stage canvas").all()]
    return [{**box} for box in found if box is not None]


def test_light_and_dark(page: "Page") -> None:
    paper = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(paper)
    page.emulate_media(color_scheme="dark")
    dark = page.evaluate(paper)
    page.click("#theme")
    assert page.evaluate(paper) == light != dark
    page.reload()
    assert page.evaluate(paper) == light


def test_names_and_focus(page: "Page") -> None:
    unnamed = """[...document.querySelectorAll("button, select, input, canvas[tabindex]")].filter((each) =>
      !each.hidden && !each.getAttribute("aria-label") && !each.textContent.trim() && !each.closest("label")
    ).map((each) => each.outerHTML)"""
    assert page.evaluate(unnamed) == []
    page.keyboard.press("Tab")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_reports_have_maps_to_point_at(browser: "Browser", tmp_path: Path) -> None:
    from sightline.analysis.capture import capture
    from sightline.analysis.hover import hover_maps
    from sightline.engine.report import html

    from ..models.tiny import image, tiny

    blocks = capture(tiny("deit"), image(64, batch=1)[0])
    photo = Image.linear_gradient("L").resize((64, 64))
    sections = [html.Section("", [html.Hover(hover_maps("</script><b>", photo, blocks))])]
    (tmp_path / "report.html").write_text(html.render("report", sections))
    page = browser.new_page()
    page.goto((tmp_path / "report.html").as_uri())
    page.wait_for_selector(".map:nth-child(3) .number")
    pixels = "[...document.querySelectorAll('.plate')].map((canvas) => canvas.toDataURL())"
    before = page.evaluate(pixels)
    page.locator(".plate").first.hover(position={"x": 20, "y": 20})
    assert all(a != b for a, b in zip(before, page.evaluate(pixels), strict=True))
    assert "patch 0,0:" in page.locator(".number").last.inner_text()
    assert page.locator("figcaption").inner_text() == "</script><b>"
    page.close()
