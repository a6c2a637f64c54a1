"""A real HTTP server for tests of downloads, with the faults of real ones."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class File:
    """How a file is sent.

    Args:
        data: the file.
        etag: its version; "" for a server that has none.
        ranges: whether a part of it can be asked for.
        cuts: after how many bytes of the body the connection breaks, one per request; then never.
        length: Content-Length if it is not the true one; None for a body that ends with the connection.
        type: Content-Type.
        delay: seconds before each block of `block` bytes.
    """

    data: bytes
    etag: str = '"1"'
    ranges: bool = True
    cuts: list[int] = field(default_factory=list)
    length: int | str | None = ""
    type: str = "application/octet-stream"
    delay: float = 0.0
    block: int = 1 << 14

    def send(self, handler: "Handler") -> None:
        asked, start = handler.headers.get("Range", ""), 0
        if asked and self.ranges and handler.headers.get("If-Range", self.etag) == self.etag:
            start = int(asked.removeprefix("bytes=").removesuffix("-"))
            if start >= len(self.data):
                handler.send_error(416)
                return
        body = self.data[start:]
        handler.send_response(206 if start else 200)
        handler.send_header("Content-Type", self.type)
        if start:
            handler.send_header("Content-Range", f"bytes {start}-{len(self.data) - 1}/{len(self.data)}")
        if self.etag:
            handler.send_header("ETag", self.etag)
        if self.length is not None:
            handler.send_header("Content-Length", str(len(body) if self.length == "" else self.length))
        handler.send_header("Connection", "close")
        handler.end_headers()
        if self.cuts:
            body = body[: self.cuts.pop(0)]
        for i in range(0, len(body), self.block):
            if self.delay:
                time.sleep(self.delay)
            handler.wfile.write(body[i : i + self.block])
            handler.wfile.flush()
        handler.close_connection = True


Route = File | str | int | Callable[["Handler"], None]  # a file, a redirect, a status, or anything


class Handler(BaseHTTPRequestHandler):
    server: "Server"

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        self.server.requests.append((self.path, dict(self.headers)))
        route = self.server.routes.get(self.path, 404)
        if isinstance(route, File):
            route.send(self)
        elif isinstance(route, str):
            self.send_response(302)
            self.send_header("Location", route)
            self.end_headers()
        elif isinstance(route, int):
            self.send_error(route)
        else:
            route(self)

    def log_message(self, *_: Any) -> None:
        pass


class Server(ThreadingHTTPServer):
    """Answers `routes` by path and keeps the requests: (path, headers)."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.routes: dict[str, Route] = {}
        self.requests: list[tuple[str, dict[str, str]]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, *_: Any) -> None:
        """A client that went away is part of the tests."""


@contextmanager
def serving() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield server
        server.shutdown()
