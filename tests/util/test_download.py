"""`sightline.util.download` against a real server."""

import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sightline.util import download as module
from sightline.util.download import DownloadError, download

from ..http_server import File, Handler, Server, serving

DATA = os.urandom(300_000)
OTHER = os.urandom(300_000)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(module, "PAUSE", 0.0)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with serving() as server:
        yield server


def fetch(server: Server, folder: Path, path: str = "/file") -> bytes:
    part = folder / "file.part"
    download(server.url + path, part, "file")
    return part.read_bytes()


def fails(server: Server, folder: Path, path: str = "/file") -> str:
    with pytest.raises(DownloadError) as caught:
        download(server.url + path, folder / "file.part", "file")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def ranges(server: Server) -> list[str | None]:
    return [headers.get("Range") for _, headers in server.requests]


def begin(server: Server, folder: Path, size: int, **options: object) -> None:
    """An earlier call that was interrupted after `size` bytes."""
    server.routes["/file"] = File(DATA, cuts=[size, *[0] * 9], **options)  # type: ignore[arg-type]
    fails(server, folder)
    assert (folder / "file.part").stat().st_size == size
    server.requests.clear()


def test_a_file(server: Server, tmp_path: Path) -> None:
    server.routes["/file"] = File(DATA)
    assert fetch(server, tmp_path) == DATA
    assert ranges(server) == [None]


def test_a_complete_part_is_not_fetched_again(server: Server, tmp_path: Path) -> None:
    server.routes["/file"] = File(DATA)
    assert fetch(server, tmp_path) == fetch(server, tmp_path) == DATA
    assert ranges(server) == [None, f"bytes={len(DATA) - module.OVERLAP}-"]


def test_redirects(server: Server, tmp_path: Path) -> None:
    server.routes |= {"/file": "/one", "/one": f"{server.url}/two", "/two": File(DATA)}
    assert fetch(server, tmp_path) == DATA


def test_a_circle_of_redirects(server: Server, tmp_path: Path) -> None:
    server.routes |= {"/file": "/one", "/one": "/file"}
    assert "302" in fails(server, tmp_path)


@pytest.mark.parametrize("etag", ['"1"', ""])
@pytest.mark.parametrize("cut", [1, 65_536, 65_537, 200_000, 299_999])
def test_a_lost_connection_resumes_at_once(server: Server, tmp_path: Path, cut: int, etag: str) -> None:
    server.routes["/file"] = File(DATA, etag=etag, cuts=[cut])
    assert fetch(server, tmp_path) == DATA
    rest = None if cut <= module.OVERLAP else f"bytes={cut - module.OVERLAP}-"
    assert ranges(server) == [None, rest]


def test_several_lost_connections(server: Server, tmp_path: Path) -> None:
    server.routes["/file"] = File(DATA, cuts=[100_000, 70_000, 90_000])
    assert fetch(server, tmp_path) == DATA
    assert len(server.requests) == 4


@pytest.mark.parametrize("size", [100_000, 299_999])
def test_a_later_call_resumes(server: Server, tmp_path: Path, size: int) -> None:
    begin(server, tmp_path, size)
    server.routes["/file"] = File(DATA)
    assert fetch(server, tmp_path) == DATA
    assert ranges(server) == [f"bytes={size - module.OVERLAP}-"]
    assert server.requests[0][1]["If-Range"] == '"1"'


def test_a_server_that_breaks_at_one_place(server: Server, tmp_path: Path) -> None:
    server.routes["/file"] = File(DATA, ranges=False, cuts=[100_000] * 9)
    assert "100,000 bytes" in fails(server, tmp_path)
    assert len(server.requests) == 1 + module.ATTEMPTS


def test_a_server_without_ranges_starts_again(server: Server, tmp_path: Path) -> None:
    begin(server, tmp_path, 200_000)
    server.routes["/file"] = File(DATA, ranges=False)
    assert fetch(server, tmp_path) == DATA


@pytest.mark.parametrize("etags", [('"1"', '"2"'), ("", "")])
def test_a_file_that_changed_starts_again(server: Server, tmp_path: Path, etags: tuple[str, str]) -> None:
    """The version shows it, or without one the bytes that are fetched twice."""
    begin(server, tmp_path, 200_000, etag=etags[0])
    server.routes["/file"] = File(OTHER, etag=etags[1])
    assert fetch(server, tmp_path) == OTHER


@pytest.mark.parametrize("length", ["", None])
@pytest.mark.parametrize("size", [100_000, 200_000, 400_000])
def test_a_file_of_another_size(server: Server, tmp_path: Path, size: int, length: str | None) -> None:
    begin(server, tmp_path, 250_000, etag="")
    if length is None:  # the earlier call was not told
        record = tmp_path / "file.part.json"
        record.write_text(record.read_text().replace("300000", "null"))
    server.routes["/file"] = File((DATA + DATA)[:size], etag="")
    assert fetch(server, tmp_path) == (DATA + DATA)[:size]


def test_another_address_starts_again(server: Server, tmp_path: Path) -> None:
    begin(server, tmp_path, 200_000)
    server.routes["/other"] = File(OTHER)
    assert fetch(server, tmp_path, "/other") == OTHER
    assert ranges(server) == [None]


@pytest.mark.parametrize("record", ["", "{", "[]", "null", '{"url": 1, "validator": "a\\nb"}'])
def test_a_damaged_record_starts_again(server: Server, tmp_path: Path, record: str) -> None:
    begin(server, tmp_path, 200_000)
    (tmp_path / "file.part.json").write_text(record)
    server.routes["/file"] = File(DATA)
    assert fetch(server, tmp_path) == DATA


def test_a_part_of_which_bytes_were_lost(server: Server, tmp_path: Path) -> None:
    """A crash of the machine can leave zeros at the end of a file."""
    begin(server, tmp_path, 200_000)
    (tmp_path / "file.part").write_bytes(DATA[:150_000] + bytes(50_000))
    server.routes["/file"] = File(DATA)
    assert fetch(server, tmp_path) == DATA


@pytest.mark.parametrize("status", [403, 404, 500, 503])
def test_a_status(server: Server, tmp_path: Path, status: int) -> None:
    server.routes["/file"] = status
    assert str(status) in fails(server, tmp_path)
    assert len(server.requests) == 1


def test_no_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", pytest.fail)  # it does not try again and again
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}/file"
    with pytest.raises(DownloadError, match=r"(?i)refused"):
        download(address, tmp_path / "file.part", "file")
    with pytest.raises(DownloadError, match=r"(?i)unknown url type"):
        download("gopher://127.0.0.1/file", tmp_path / "file.part", "file")


@pytest.mark.parametrize("type", ["text/html; charset=utf-8", "application/octet-stream"])
def test_a_login_page(server: Server, tmp_path: Path, type: str) -> None:
    page = b"\n<!DOCTYPE html><html><head><title>Sign in\n to continue</title></head><body>...</body></html>"
    server.routes["/file"] = File(page, type=type)
    assert "'Sign in to continue'" in fails(server, tmp_path)
    assert not (tmp_path / "file.part").exists()


def confirmation(action: str) -> File:
    form = f'<form id="download-form" action="{action}" method="get"><input type="submit" value="Download">'
    values = '<input type="hidden" name="id" value="a&amp;b"><input type="hidden" name="confirm" value="t"></form>'
    return File(f"<html><title>Virus scan</title>{form}{values}</html>".encode(), type="text/html", ranges=False)


def test_a_page_that_asks_for_a_confirmation(server: Server, tmp_path: Path) -> None:
    server.routes |= {"/file": confirmation("/really"), "/really?id=a%26b&confirm=t": File(DATA, cuts=[200_000])}
    assert fetch(server, tmp_path) == DATA  # the second part is confirmed again
    assert [path.partition("?")[0] for path, _ in server.requests] == ["/file", "/really"] * 2


@pytest.mark.parametrize("action", ["http://192.0.2.1/really", "file:///etc/passwd", "/again"])
def test_a_confirmation_that_leads_elsewhere(server: Server, tmp_path: Path, action: str) -> None:
    server.routes |= {"/file": confirmation(action), "/again?id=a%26b&confirm=t": confirmation("/again")}
    assert "Virus scan" in fails(server, tmp_path)
    assert len(server.requests) <= 2


def test_a_slow_server(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TIMEOUT", 0.25)
    server.routes["/file"] = File(DATA[:60_000], delay=0.1, block=10_000)  # slow, but never silent
    assert fetch(server, tmp_path) == DATA[:60_000]


def test_a_silent_server(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TIMEOUT", 0.1)
    server.routes["/file"] = File(DATA, delay=1, block=100_000)
    assert "timed out" in fails(server, tmp_path)


@pytest.mark.parametrize("length", [None, "-5", "many", "1e5"])
def test_an_unknown_length(server: Server, tmp_path: Path, length: str | None) -> None:
    server.routes["/file"] = File(DATA, length=length)
    assert fetch(server, tmp_path) == DATA


def test_a_length_that_is_too_large(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server.routes["/file"] = File(DATA, ranges=False, length=len(DATA) + 1)
    assert "300,000 bytes" in fails(server, tmp_path)
    server.routes["/file"] = File(DATA, length=10**15)
    assert f"{10**15:,}" in fails(server, tmp_path)
    monkeypatch.setattr(module, "LARGEST", 100_000)
    server.routes["/file"] = File(DATA, length=None)
    assert "100,000 bytes" in fails(server, tmp_path)
    assert not (tmp_path / "file.part").exists()


def test_too_little_space(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server.routes["/file"] = File(DATA)
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: os.terminal_size((1, 1)) and _Usage())
    assert str(tmp_path) in fails(server, tmp_path)
    assert not (tmp_path / "file.part").exists()


class _Usage:
    free = 299_999


def test_chunks_that_end_early(server: Server, tmp_path: Path) -> None:
    bodies = [DATA[:100_000], DATA]

    def send(handler: Handler) -> None:
        handler.protocol_version = "HTTP/1.1"
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        body = bodies.pop(0)
        for i in range(0, len(body), 1000):
            handler.wfile.write(b"%x\r\n%s\r\n" % (len(body[i : i + 1000]), body[i : i + 1000]))
        handler.wfile.write(b"0\r\n\r\n" if body is DATA else b"5000\r\nab")
        handler.close_connection = True

    server.routes["/file"] = send
    assert fetch(server, tmp_path) == DATA


def test_a_part_that_cannot_be_right(server: Server, tmp_path: Path) -> None:
    """A server that answers with another part than was asked for, or with none that can be read."""
    begin(server, tmp_path, 200_000)
    answers = ["bytes 5-299999/300000", "items 5-6/7", "bytes 134464-299999/*"]

    def send(handler: Handler) -> None:
        if "Range" not in handler.headers:
            return File(DATA).send(handler)
        handler.send_response(206)
        handler.send_header("Content-Range", answers.pop())
        handler.end_headers()
        handler.wfile.write(OTHER[:100])

    server.routes["/file"] = send
    for _ in range(3):
        assert fetch(server, tmp_path) == DATA
        (tmp_path / "file.part").write_bytes(DATA[:200_000])
        record = {"url": f"{server.url}/file", "validator": "", "total": len(DATA)}
        (tmp_path / "file.part.json").write_text(json.dumps(record))


@pytest.mark.parametrize("name", ["http_proxy", "HTTP_PROXY"])
def test_a_proxy(server: Server, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    address = "http://weights.invalid/file"  # which only the proxy can reach
    server.routes[address] = File(DATA)
    for variable in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv(name, server.url)
    download(address, tmp_path / "file.part", "file")
    assert (tmp_path / "file.part").read_bytes() == DATA
    assert server.requests[0][0] == address


def test_a_bar_on_a_terminal_alone(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server.routes["/file"] = File(DATA)
    fetch(server, tmp_path)
    assert capsys.readouterr() == ("", "")
    (tmp_path / "file.part").unlink()
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    fetch(server, tmp_path)
    assert "300.0/300.0 kB" in capsys.readouterr().err
