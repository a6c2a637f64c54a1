"""The page without a server: it has the answers of the server, and nothing in it ends a script."""

import base64
import gzip
import json
import re
from typing import Any

import numpy as np
import pytest

from sightline.explorer.inside import SCORES
from sightline.explorer.page import assemble, in_script, page
from sightline.explorer.session import Session, Wanted
from sightline.util.errors import InputError

from . import small


def made(found: Session) -> tuple[str, dict[str, Any]]:
    html = page(found, [found.panel(wanted)["id"] for wanted in found.start])
    (data,) = re.findall(r'<script type="application/json" id="sightline-data">(.*?)</script>', html, re.DOTALL)
    return html, json.loads(data)


def unzip(text: str, dtype: str, *shape: int) -> Any:
    return np.frombuffer(gzip.decompress(base64.b64decode(text)), dtype).reshape(shape)


def compare(packed: dict[str, Any], query: int, answer: dict[str, Any], queries: int, prefix: int) -> None:
    heads, keys = packed["heads"], packed["grid"][0] * packed["grid"][1]
    data = unzip(packed["data"], "int8", queries, heads, keys)[query]
    stats = unzip(packed["stats"], "<f4", queries, heads, 4 + prefix)[query]
    own = np.frombuffer(base64.b64decode(answer["weights"]), np.int8).reshape(heads, keys)
    step = np.array(answer["scale"])[:, None]
    assert packed["grid"] == answer["grid"]
    assert np.abs(data * stats[:, :1] - own * step).max() <= 1.01 * step.max()
    for column, name in enumerate(("min", "max", "sum"), 1):
        assert stats[:, column] == pytest.approx(answer[name], abs=1e-5)
    if prefix:
        assert stats[:, 4:] == pytest.approx(np.array(answer["prefix"]), abs=1e-6)


def test_the_same_answers() -> None:
    found = small.session(("inline", "softmax"))
    html, data = made(found)
    assert data["options"]["static"] is True
    assert data["seen"].startswith("data:image/jpeg;base64,")
    assert data["image"]["id"] == "cat"
    for panel in data["panels"]:
        id = panel["id"]
        for query, position in ((5, 5), ("class", 16)):
            for index, block in enumerate(panel["packed"]["blocks"]):
                compare(block["rows"], position, found.row(id, index, query), 17, 1)  # type: ignore[arg-type]
                assert (block["local"] is None) == (panel["mechanism"] == "softmax")
                if block["local"] is not None:
                    compare(block["local"], position, found.local(id, index, query), 17, 0)  # type: ignore[arg-type]
            compare(panel["packed"]["rollout"], position, found.rollout(id, query), 17, 1)  # type: ignore[arg-type]
        for centred in (0, 1):
            packed = panel["packed"]["blocks"][1]["confusion"][str(centred)]
            first = unzip(packed["data"], "uint8", 3, 16, 16)
            for level, score in enumerate(SCORES):
                for head, name in ((0, 0), (2, None)):
                    answer = found.confusion(id, 1, name, 5, bool(centred), score)
                    assert answer["same"] == np.flatnonzero(first[head, 5] <= level).tolist()
                    assert answer["share"] == packed["share"][head][level]
    assert "http://" not in html.replace("http://www.w3.org", "")
    assert not re.search(r"<(script|link)[^>]*(src|href)=\"web", html)


def test_names_end_no_script() -> None:
    title = "</script><script>alert(1)</script><!-- & \u2028"
    html = assemble(title, {"name": title})
    assert "alert(1)</script>" not in html
    assert html.count("<script") == html.count("</script>")
    text = in_script({"name": title})
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == {"name": title}
    assert "<title>&lt;/script&gt;" in html


def test_too_many_tokens() -> None:
    found = small.session(("inline",))
    wanted = Wanted("cat", "m0", (416, 416), "inline")
    with pytest.raises(InputError, match=r"img_size: .* 67[67] tokens"):
        page(found, [found.panel(wanted)["id"]])


def test_pyramids_keep_their_later_stages() -> None:
    args = {"depths": (1, 1, 1, 1), "embed_dims": 16, "num_heads": (1, 1, 1, 1), "num_classes": 6}
    found = small.session(("inline",), "inline_pvt_tiny", args)
    wanted = Wanted("cat", "m0", (128, 128), "inline")
    html = page(found, [found.panel(wanted)["id"]])
    (data,) = re.findall(r'id="sightline-data">(.*?)</script>', html, re.DOTALL)
    (panel,) = json.loads(data)["panels"]
    assert [block["rows"] for block in panel["blocks"]] == [False, True, True, True]
    assert [block is None for block in panel["packed"]["blocks"]] == [True, False, False, False]
