"""The local server of the page: a Starlette application, and uvicorn around it.

Every request runs in a thread, so that a long one does not block the page. Uploads stay in memory, and no answer has a
path of this machine. Only this machine may ask; with another host, only who knows the token in the address.
"""

import re
import socket
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import uvicorn
from anyio import fail_after
from pydantic import Field, TypeAdapter, ValidationError
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sightline.data.images import ImageError
from sightline.explorer.assets import ASSETS
from sightline.explorer.inside import SCORE, SCORES
from sightline.explorer.page import page
from sightline.explorer.pictures import MAX_UPLOAD, TooLargeError, UnknownError
from sightline.explorer.session import LARGEST, MAX_PANELS, SMALLEST, BusyError, Session, Wanted
from sightline.explorer.views import Answer, Query
from sightline.util.errors import FileError, InputError
from sightline.util.names import parse_size
from sightline.util.schema import explain
from sightline.util.text import one_line

LOOPBACK = ("127.0.0.1", "localhost")
KINDS = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
MAX_SECONDS = 60  # until a request has arrived
MAX_REQUEST = 1 << 16  # bytes of a request other than an upload
HEADERS = {
    b"content-security-policy": b"default-src 'self'; img-src 'self' data: blob:; style-src 'self' 'unsafe-inline'",
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
    b"cache-control": b"no-store",
}
STATUS: "dict[type[Exception], int]" = {
    UnknownError: 404, TooLargeError: 413, ImageError: 415, BusyError: 429, InputError: 400, FileError: 400,
    ClientDisconnect: 400,  # who left an upload gets no answer, and the terminal no traceback
}  # fmt: skip
WANTED = TypeAdapter(Wanted)
Real = Annotated[float, Field(allow_inf_nan=False)]
START = TypeAdapter(dict[str, bool | int | Real | str | list[Real]])  # the view of a page, whose script checks it
MAX_START = 1000
Endpoint = Callable[[Request], Awaitable[Response]]


def application(session: Session, token: str = "", hosts: tuple[str, ...] = LOOPBACK) -> ASGIApp:
    """The page and its API.

    Args:
        token: of the address, under which everything lies; "" for none.
        hosts: names in the header `Host` that are answered; with a token, any.
    """

    def route(path: str, answer: Callable[..., Any], method: str = "GET") -> Route:
        async def endpoint(request: Request) -> Response:
            return await answer(session, request)

        return Route(path, endpoint, methods=[method])

    routes = [
        route("/", _page),
        route("/web/{name}", _asset),
        route("/api/options", _options),
        route("/api/images", _upload, "POST"),
        route("/api/images/{id}", _image),
        route("/api/panels", _panel, "POST"),
        route("/api/panels/{id}/{kind}", _view),
        route("/api/together", _together),
        route("/api/page", _download),
    ]
    app = Starlette(
        routes=[Mount(f"/{token}", routes=routes)] if token else routes,
        exception_handlers={HTTPException: _http_error, Exception: _error, **dict.fromkeys(STATUS, _error)},
    )
    return Guard(app, () if token else hosts)


class Guard:
    """Rejects requests with another host name, which a foreign page may have made point here, or from a foreign page.

    Also sets the headers of every answer.
    """

    def __init__(self, app: ASGIApp, hosts: tuple[str, ...]) -> None:
        self.app, self.hosts = app, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)

        async def send_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = {name for name, _ in message["headers"]}
                message["headers"] += [(name, value) for name, value in HEADERS.items() if name not in own]
            await send(message)

        app = self.app
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        host, origin = headers.get(b"host", ""), headers.get(b"origin")
        if self.hosts and re.sub(r":[0-9]{1,5}$", "", host) not in self.hosts:
            app = _failure(400, "host: this name is not that of the server; open the printed address")
        elif origin is not None and origin.partition("://")[2] != host:
            app = _failure(400, "origin: the request comes from another page")
        await app(scope, receive, send_headers)


def _failure(status: int, text: object) -> JSONResponse:
    return JSONResponse({"error": one_line(text, 400)}, status)


async def _error(_: Request, error: Exception) -> Response:
    status = _status(error)
    return _failure(status, "this did not work; the terminal says more" if status == 500 else error)


def _status(error: Exception) -> int:
    return next((status for kind, status in STATUS.items() if isinstance(error, kind)), 500)


async def _http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _failure(error.status_code, error.detail.lower())


def _asset_response(name: str) -> Response:
    kind = KINDS.get(f".{name.rpartition('.')[2]}")
    if name not in ASSETS or kind is None:
        raise UnknownError("no such file")
    return Response(ASSETS[name].read_bytes(), media_type=kind)


async def _page(_: Session, request: Request) -> Response:
    return await run_in_threadpool(_asset_response, "index.html")


async def _asset(_: Session, request: Request) -> Response:
    return await run_in_threadpool(_asset_response, request.path_params["name"])


async def _options(session: Session, _: Request) -> Response:
    return JSONResponse(session.options())


async def _upload(session: Session, request: Request) -> Response:
    with session.receiving():
        data = await _body(request, MAX_UPLOAD, f"the image has more than {MAX_UPLOAD >> 20} MB; make it smaller")
        picture = await run_in_threadpool(session.upload, data, request.query_params.get("name", ""))
    return JSONResponse(picture.facts())


async def _image(session: Session, request: Request) -> Response:
    size = _size(request.query_params.get("size", ""))
    return Response(await run_in_threadpool(session.picture, request.path_params["id"], size), media_type="image/jpeg")


async def _panel(session: Session, request: Request) -> Response:
    body = await _body(request, MAX_REQUEST, "the request is too long")
    try:
        wanted = WANTED.validate_json(body, strict=True)
    except ValidationError as error:
        raise InputError(explain(error)) from None
    return JSONResponse(await run_in_threadpool(session.panel, wanted))


async def _view(session: Session, request: Request) -> Response:
    kind, id = request.path_params["kind"], request.path_params["id"]
    return JSONResponse(await run_in_threadpool(_ask, session, id, kind, request.query_params))


async def _together(session: Session, request: Request) -> Response:
    """Several answers about panels in one, each as it would be alone, or why there is none."""
    paths = request.query_params.getlist("ask")
    if len(paths) > MAX_PANELS:
        raise InputError(f"ask: at most {MAX_PANELS}; got {len(paths)}")
    return JSONResponse(await run_in_threadpool(lambda: [_ask_path(session, path) for path in paths]))


def _ask_path(session: Session, path: str) -> Answer:
    address, _, parameters = path.partition("?")
    id, _, kind = address.partition("/")
    try:
        return _ask(session, id, kind, QueryParams(parameters))
    except tuple(STATUS) as error:
        return {"error": one_line(error, 400), "status": _status(error)}


def _ask(session: Session, id: str, kind: str, asked: QueryParams) -> Answer:
    """An answer about a panel: what the address says after its name."""
    match kind:
        case "row":
            return session.row(id, _number(asked, "block"), _query(asked))
        case "local":
            return session.local(id, _number(asked, "block"), _query(asked))
        case "rollout":
            return session.rollout(id, _query(asked))
        case "confusion":
            head = None if asked.get("head", "mean") == "mean" else _number(asked, "head")
            score, centred = _score(asked.get("score", str(SCORE))), asked.get("centred") == "1"
            return session.confusion(id, _number(asked, "block"), head, _query(asked), centred, score)
    raise UnknownError("no such view of a panel")


async def _download(session: Session, request: Request) -> Response:
    panels = request.query_params.get("panels", "").split(",")
    if len(panels) > MAX_PANELS:
        raise InputError(f"panels: at most {MAX_PANELS}; got {len(panels)}")
    try:
        start = START.validate_json(request.query_params.get("start", "{}")[:MAX_START])
    except ValidationError:
        raise InputError("start: expected the state of the page as an object in JSON") from None
    html = await run_in_threadpool(session.slowly, lambda: page(session, panels, start))
    headers = {"content-disposition": 'attachment; filename="sightline.html"'}
    return Response(html, media_type="text/html", headers=headers)


async def _body(request: Request, most: int, complaint: str) -> bytes:
    """The body of a request, which is not read further than allowed, nor for longer."""
    data = bytearray()
    try:
        with fail_after(MAX_SECONDS):
            async for chunk in request.stream():
                data += chunk
                if len(data) > most:
                    raise TooLargeError(complaint)
    except TimeoutError:
        raise TooLargeError(f"the request took more than {MAX_SECONDS} s; send less at a time") from None
    return bytes(data)


def _number(asked: QueryParams, name: str) -> int:
    text = asked.get(name, "")
    if not re.fullmatch(r"[0-9]{1,7}", text):
        raise InputError(f"{name}: expected a whole number; got {one_line(text, 40)!r}")
    return int(text)


def _query(asked: QueryParams) -> Query:
    return "class" if asked.get("query") == "class" else _number(asked, "query")


def _score(text: str) -> float:
    found = {str(score): score for score in SCORES}
    if text not in found:
        raise InputError(f"score: expected one of {', '.join(found)}; got {one_line(text, 40)!r}")
    return found[text]


def _size(text: str) -> tuple[int, int]:
    size = parse_size(text[:20])
    if not all(SMALLEST <= side <= LARGEST for side in size):
        raise InputError(f"size: expected from {SMALLEST} to {LARGEST} pixels; got {size[0]}x{size[1]}")
    return size


def listen(host: str, port: int) -> socket.socket:
    """A socket on a port; 0 for one that is free.

    Raises:
        InputError: the port is in use, or there is no such host.
    """
    try:
        family = socket.getaddrinfo(host, port)[0][0]
        opened = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # by which asyncio sends at once
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind((host, port))
    except socket.gaierror as error:
        raise InputError(
            f"host: {host} is not a name or address of this machine ({error.strerror}); give one"
        ) from error
    except (OSError, OverflowError) as error:
        why = (getattr(error, "strerror", None) or str(error)).lower()
        raise InputError(f"port: cannot listen on {host}:{port} ({why}); give another port, or 0") from error
    return opened


def serve(app: ASGIApp, opened: socket.socket, started: Callable[[], None]) -> None:
    """Answer requests until an interrupt; calls `started` once it listens."""

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            started()

    config = uvicorn.Config(app, log_level="error", lifespan="off", timeout_graceful_shutdown=1, server_header=False)
    Server(config).run(sockets=[opened])
