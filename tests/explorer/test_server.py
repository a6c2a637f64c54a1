"""The API: what it answers, and what it says to bad requests."""

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from io import BytesIO
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from PIL import Image
from starlette.requests import Request
from starlette.testclient import TestClient
from starlette.types import Message, Scope

from sightline.explorer import pictures, session
from sightline.explorer.pictures import TooLargeError
from sightline.explorer.server import _body
from sightline.explorer.session import MAX_WAITING, Session
from sightline.explorer.views import View

from . import small
from .small import panel, png


@pytest.fixture(scope="module")
def found() -> Session:
    return small.session(("inline", "linear"))


@pytest.fixture(scope="module")
def page(found: Session) -> TestClient:
    return small.client(found)


def test_options(page: TestClient) -> None:
    options = page.get("/api/options").json()
    assert options["samples"][0] == {"id": "cat", "title": "Cat", "width": 451, "height": 300}
    assert options["models"] == [{"id": "m0", "title": "inline_deit_tiny (random weights)"}]
    assert {"softmax", "inline", "linear"} <= set(options["attentions"])
    assert {64, 224, 1024} <= set(options["sizes"])
    assert options["start"]["panels"] == [{"model": "m0", "attention": name} for name in ("inline", "linear")]


def test_panel(page: TestClient) -> None:
    made = panel(page, attention="linear")
    assert made["title"] == "inline_deit_tiny (random weights), linear"
    assert "RANDOM" in made["note"]
    assert made["pixels"] == [64, 64]
    assert [block["grid"] for block in made["blocks"]] == [[4, 4], [4, 4]]
    assert panel(page, attention="linear")["id"] == made["id"]
    assert panel(page, attention="softmax", size=[48, 96])["blocks"][0]["grid"] == [3, 6]
    for what in ("row?block=1&query=3", "row?block=0&query=class", "rollout?query=3"):
        answer = page.get(f"/api/panels/{made['id']}/{what}").json()
        assert answer["grid"] == [4, 4], what
    same = page.get(f"/api/panels/{made['id']}/confusion?block=0&head=mean&query=3&score=0.2&centred=1").json()
    assert (same["grid"], same["centred"], same["thresholds"]["score"]) == ([4, 4], True, 0.2)


def test_gray_models() -> None:
    page = small.client(small.session(("inline",), args={**small.ARGS, "in_chans": 1}))
    assert panel(page, attention="inline", size=[32, 48])["blocks"][0]["grid"] == [2, 3]


def test_upload(page: TestClient) -> None:
    data = png(300, 200)
    made = page.post("/api/images?name=C:\\fakepath\\<b>a</b>.png", content=data).json()
    assert (made["title"], made["width"], made["height"]) == ("b>.png", 300, 200)
    seen = page.get(f"/api/images/{made['id']}?size=48x64")
    assert seen.headers["content-type"] == "image/jpeg"
    assert Image.open(BytesIO(seen.content)).size == (64, 48)
    assert panel(page, image=made["id"], attention="inline")["blocks"][0]["grid"] == [4, 4]


@pytest.mark.parametrize(
    ("data", "status"),
    [(b"", 415), (b"GIF89a", 415), (b"<svg/>", 415), (png()[:200], 415), (b"%!PS-Adobe\n", 415)],
)
def test_broken_images(page: TestClient, data: bytes, status: int) -> None:
    answer = page.post("/api/images", content=data)
    assert answer.status_code == status
    assert "\n" not in answer.json()["error"]


def test_large_images(page: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "MAX_PIXELS", 1000)
    assert page.post("/api/images", content=png(50, 50, seed=1)).status_code == 413
    monkeypatch.setattr("sightline.explorer.server.MAX_UPLOAD", 1000)
    assert page.post("/api/images", content=png(50, 50, seed=2)).status_code == 413


def test_uploads_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "MEMORY", 2 * 3 * 40 * 30)
    page = small.client(small.session(("inline",)))
    ids = [page.post("/api/images", content=png(seed=seed)).json()["id"] for seed in range(3)]
    assert [page.get(f"/api/images/{id}?size=32").status_code for id in ids] == [404, 200, 200]


HUGE = "1" + "0" * 400


@pytest.mark.parametrize("value", ["", "x", "-1", "1.5", "nan", "inf", HUGE, "99", "%00", "٣"])
@pytest.mark.parametrize("name", ["block", "query"])
def test_bad_numbers(page: TestClient, name: str, value: str) -> None:
    made = panel(page, attention="inline")["id"]
    other = "query" if name == "block" else "block"
    for what in ("row", "local", "confusion"):
        answer = page.get(f"/api/panels/{made}/{what}?{other}=0&{name}={value}")
        assert answer.status_code == 400, what
        assert name in answer.json()["error"]


@pytest.mark.parametrize(
    ("what", "name"),
    [
        ("confusion?block=0&query=0&head=9", "head"),
        ("confusion?block=0&query=0&head=nan", "head"),
        ("confusion?block=0&query=0&score=0.11", "score"),
        ("confusion?block=0&query=0&score=nan", "score"),
        ("rollout?query=16", "query"),
        (f"rollout?query={HUGE}", "query"),
    ],
)
def test_bad_questions(page: TestClient, what: str, name: str) -> None:
    answer = page.get(f"/api/panels/{panel(page, attention='inline')['id']}/{what}")
    assert answer.status_code == 400
    assert name in answer.json()["error"]


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"image": "nothing"}, 404),
        ({"image": "../../etc/passwd"}, 404),
        ({"image": 3}, 400),
        ({"model": "m9"}, 404),
        ({"attention": "inlin"}, 400),
        ({"attention": "soft(landmarks=1000000)"}, 400),
        ({"size": [64]}, 400),
        ({"size": [64, 1e400]}, 400),
        ({"size": [8, 64]}, 400),
        ({"size": [64, 2000]}, 400),
        ({"size": [64, -64]}, 400),
        ({"size": [64.5, 64]}, 400),
        ({"size": "64x64"}, 400),
        ({"size": None}, 400),
    ],
)
def test_bad_panels(page: TestClient, change: dict[str, Any], status: int) -> None:
    wanted = {"image": "cat", "model": "m0", "attention": "inline", "size": [64, 64], **change}
    answer = page.post("/api/panels", content=json.dumps(wanted))
    assert answer.status_code == status
    assert set(answer.json()) == {"error"}


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"\xff", b'{"image": NaN}', b"[" * 20000, b'{"size": [%s, 1]}'])
def test_bad_json(page: TestClient, body: bytes) -> None:
    answer = page.post("/api/panels", content=body.replace(b"%s", HUGE.encode()))
    assert answer.status_code == 400
    assert "\n" not in answer.json()["error"]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/panels/nothing/row?block=0&query=0", 404),
        ("/api/images/nothing?size=64", 404),
        ("/api/images/cat?size=9999", 400),
        ("/api/images/cat?size=nan", 400),
        ("/api/images/cat", 400),
        ("/api/nothing", 404),
        ("/web/..%2F..%2Fpyproject.toml", 404),
        ("/web/nothing.js", 404),
        ("/api/panels", 405),
        ("/api/page?panels=a,b,c,d", 400),
        ("/api/page", 404),
        ('/api/page?start={"block":NaN}', 400),
        ("/api/page?start=[", 400),
    ],
)
def test_bad_addresses(page: TestClient, path: str, status: int) -> None:
    answer = page.get(path)
    assert answer.status_code == status
    assert set(answer.json()) == {"error"}


def test_a_long_request(page: TestClient) -> None:
    assert page.post("/api/panels", content=b" " * (1 << 17)).status_code == 413


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example:80", "evil.example:8000", "127.0.0.1:8@evil.example", ""]
)
def test_other_hosts(page: TestClient, host: str) -> None:
    assert page.get("/api/options", headers={"host": host}).status_code == 400


def test_other_origins(page: TestClient) -> None:
    own, bad = "http://127.0.0.1:8000", "http://[::1"
    for origin, status in (("http://evil.example", 400), ("null", 400), (bad, 400), (own, 200)):
        assert page.post("/api/images", content=png(), headers={"origin": origin}).status_code == status


def test_token(found: Session) -> None:
    page = small.client(found, "secret")
    assert page.get("/secret/api/options", headers={"host": "my.machine:80"}).status_code == 200
    assert page.get("/api/options").status_code == 404
    assert page.get("/wrong/api/options").status_code == 404


def test_headers(page: TestClient) -> None:
    headers = page.get("/api/options").headers
    assert "default-src 'self'" in headers["content-security-policy"]
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["x-content-type-options"] == "nosniff"


def test_the_page_and_its_files(page: TestClient) -> None:
    html = page.get("/")
    assert html.headers["content-type"].startswith("text/html")
    assert page.get("/web/explore.js").headers["content-type"].startswith("text/javascript")


def test_no_path_in_answers(tmp_path: Path) -> None:
    from sightline.explorer.models import Models

    file = tmp_path / "photo.png"
    file.write_bytes(png())
    found = Session(Models((), ("inline",), None, small.ARGS), str(file), ("inline",), (64, 64))
    page = small.client(found)
    texts = [page.get("/api/options").text, json.dumps(panel(page, image="given", attention="inline"))]
    texts += [page.post("/api/images?name=x", content=b"no").text, page.get("/web/x").text]
    assert not any(str(tmp_path) in text or "/src/" in text for text in texts)
    assert "photo.png" in texts[0]


def test_an_unforeseen_error(monkeypatch: pytest.MonkeyPatch) -> None:
    found = small.session(("inline",))
    monkeypatch.setattr(found, "options", lambda: 1 / 0)
    answer = small.client(found).get("/api/options")
    assert answer.status_code == 500
    assert set(answer.json()) == {"error"}


def test_a_row_does_not_wait_for_a_panel(found: Session, page: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    made, go, begun = panel(page, attention="inline")["id"], Event(), Event()
    init = View.__init__

    def slow(*args: Any) -> None:
        begun.set()
        assert go.wait(20)
        init(*args)

    monkeypatch.setattr(View, "__init__", slow)
    monkeypatch.setattr(session, "MAX_WAITING", 2)
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(panel, page, attention="inline", size=[side, 64]) for side in (80, 96)]
        assert begun.wait(20)
        assert page.get(f"/api/panels/{made}/row?block=0&query=5").status_code == 200
        while found._running._waiting < 2:
            pass
        wanted = {"image": "cat", "model": "m0", "attention": "inline", "size": [112, 64]}
        assert page.post("/api/panels", json=wanted).status_code == 429
        go.set()
        assert [item.result(20)["pixels"] for item in waiting] == [[80, 64], [96, 64]]


def test_several_answers_at_once(page: TestClient) -> None:
    made = panel(page)["id"]
    asked = [f"{made}/row?block=1&query=3", f"{made}/row?block=9&query=3", "nothing/local?block=0&query=0"]
    row, bad, gone = page.get("/api/together", params={"ask": asked}).json()
    assert row["weights"] == page.get(f"/api/panels/{asked[0]}").json()["weights"]
    assert (bad["status"], gone["status"]) == (400, 404)
    assert bad["error"].startswith("block: ")
    assert page.get("/api/together", params={"ask": asked * 2}).status_code == 400


def test_uploads_at_a_time(found: Session, page: TestClient) -> None:
    with ExitStack() as stack:
        for _ in range(MAX_WAITING):
            stack.enter_context(found.receiving())
        assert page.post("/api/images", content=png()).status_code == 429
    assert page.post("/api/images", content=png()).status_code == 200


def test_a_stalled_upload(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sightline.explorer.server.MAX_SECONDS", 0.05)

    async def stall() -> Message:
        await asyncio.sleep(5)
        raise AssertionError("it was waited for")

    scope: Scope = {"type": "http", "method": "POST", "path": "/api/images", "query_string": b"", "headers": []}
    with pytest.raises(TooLargeError):
        asyncio.run(_body(Request(scope, stall), 10, "too long"))
