"""The files of the page: all there, nothing from elsewhere, no text as markup."""

import re

import pytest

from sightline.explorer.assets import ASSETS

SCRIPTS = [name for name in ASSETS if name.endswith(".js")]


def test_the_page_names_files_that_exist() -> None:
    named = re.findall(r'(?:href|src)="web/([^"]+)"', ASSETS["index.html"].read_text())
    assert len(named) >= 10
    assert set(named) <= set(ASSETS)
    assert set(ASSETS) - set(named) == {"index.html", "hover.js"}  # which is for reports


@pytest.mark.parametrize("name", ASSETS)
def test_nothing_comes_from_elsewhere(name: str) -> None:
    text = ASSETS[name].read_text()
    assert not re.search(r"https?://|@import|url\(", text)
    assert "</script" not in text or name == "index.html"  # it goes into a script element


@pytest.mark.parametrize("name", SCRIPTS)
def test_text_is_never_markup(name: str) -> None:
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(", ASSETS[name].read_text())


def test_the_page_has_no_code_or_style_of_its_own() -> None:
    page = ASSETS["index.html"].read_text()
    assert not re.search(r"\s(?:on\w+|style)=", page)
    assert not re.search(r"<script(?! src=)|<style", page)
