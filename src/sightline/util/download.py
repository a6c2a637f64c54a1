"""Download a file over HTTP: interrupted downloads resume, and what is not the file is rejected.

`urllib` follows redirects and uses the proxies of the environment (HTTPS_PROXY, NO_PROXY, ...).
"""

import http.client
import json
import re
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from html.parser import HTMLParser
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode, urljoin, urlsplit
from urllib.request import HTTPCookieProcessor, OpenerDirector, Request, build_opener

from sightline.util.errors import FileError
from sightline.util.files import reason, write_text
from sightline.util.provenance import VERSION

TIMEOUT = 30.0  # seconds without a byte
ATTEMPTS = 4  # in a row that bring nothing new, once a download has begun
PAUSE = 1.0  # seconds before another attempt; doubles
BLOCK = 1 << 16
OVERLAP = 1 << 16  # bytes that are fetched again when a download resumes, and compared
LARGEST = 4 << 30  # bytes; no published checkpoint comes near
PAGE = 1 << 20  # bytes of a web page that are read
MARKUP = re.compile(rb"\s*<(?:!doctype|html|head|\?xml)", re.IGNORECASE)


class DownloadError(FileError):
    """A download that failed; what has arrived is kept unless it cannot be used."""


class _InterruptedError(Exception):
    """The connection ended early."""


class _ChangedError(Exception):
    """The server does not continue the part: it starts again."""


@dataclass(frozen=True)
class _Origin:
    """Where a part comes from; `validator` (an ETag or a date) and `total` (bytes) tell one version from another."""

    url: str
    validator: str = ""
    total: int | None = None


def download(url: str, part: Path, title: str) -> None:
    """Complete the file `part`, which may hold the beginning from an earlier call; a bar shows progress on a terminal.

    One process at a time: the caller holds a lock. What is known about the part is in `part`.json next to it, until the
    caller has moved the part and calls `discard`.

    Raises:
        DownloadError: why, in one line without the address.
    """
    opener = build_opener(HTTPCookieProcessor(CookieJar()))
    if _read_record(part).url != url:
        discard(part)
    known = most = _size(part)
    failures = 0
    with _progress(title) as bar:
        while True:
            try:
                return _attempt(opener, url, part, bar)
            except HTTPError as error:
                if error.code != 416 or not _size(part):  # 416: the part is longer than the file
                    why = " ".join(str(error.reason).split())[:160]
                    raise DownloadError(f"HTTP {error.code} {why}") from error
                discard(part)
                why = "the file on the server has changed"
            except _ChangedError:
                discard(part)
                why = "the file on the server has changed"
            except (OSError, http.client.HTTPException, _InterruptedError) as error:
                why = _why(error)
                if _size(part) <= known and not failures:  # no connection, rather than one that was lost
                    raise DownloadError(why) from error
            failures = failures + 1 if _size(part) <= most else 0
            most = max(most, _size(part))
            if failures >= ATTEMPTS:
                raise DownloadError(f"stopped after {_size(part):,} bytes ({why}); run it again to resume")
            time.sleep(PAUSE * 2**failures)


def discard(part: Path) -> None:
    """Remove a part and what is known about it."""
    for path in (part, _record(part)):
        path.unlink(missing_ok=True)


def _attempt(opener: OpenerDirector, url: str, part: Path, bar: "_Bar") -> None:
    """One request, which continues the part if the server can, and else starts again."""
    origin = _read_record(part)
    start = max(_size(part) - OVERLAP, 0)
    headers = {"User-Agent": f"sightline/{VERSION}", "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    if start and origin.validator:
        headers["If-Range"] = origin.validator
    with _open(opener, url, headers) as response:
        begin, total = _extent(response)
        if response.status == 206:  # the rest
            known = total if origin.total is None else origin.total
            if not start or begin != start or total != known or (total or 0) < _size(part):
                raise _ChangedError
            _check_overlap(response, part, start)
        else:
            discard(part)
        _check_room(part, total)
        if not _size(part):
            with _disk(part):
                write_text(_record(part), json.dumps(asdict(_Origin(url, _validator(response), total))))
        bar.start(_size(part), total)
        _append(response, part, bar)
    if total is not None and _size(part) != total:
        raise _InterruptedError("the connection ended early")


def _open(opener: OpenerDirector, url: str, headers: dict[str, str]) -> Any:
    """The response with the file; a page that asks for a confirmation, as Google Drive's, is confirmed once."""
    response = opener.open(Request(url, headers=headers), timeout=TIMEOUT)
    if response.headers.get_content_type() == "text/html":
        with response:
            text = response.read(PAGE).decode("utf-8", "replace")
        page = _Page(text)
        target = urljoin(response.url, page.action)
        if not page.action or urlsplit(target)[:2] != urlsplit(response.url)[:2]:
            raise _page_error(page.title)
        response = opener.open(Request(f"{target}?{urlencode(page.values)}", headers=headers), timeout=TIMEOUT)
        if response.headers.get_content_type() == "text/html":
            with response:
                raise _page_error(_Page(response.read(PAGE).decode("utf-8", "replace")).title)
    if urlsplit(url).scheme == "https" != urlsplit(response.url).scheme:
        response.close()
        raise DownloadError("redirected to an address without encryption")
    return response


def _page_error(title: str) -> DownloadError:
    named = f" ({' '.join(title.split())[:80]!r})" if title.strip() else ""
    return DownloadError(f"a web page instead of the file{named}: a login, a quota or a dead link")


class _Page(HTMLParser):
    """The title of a web page, and the address and hidden values of its download form."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.title, self.action, self.values = "", "", dict[str, str]()
        self.within = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {key: value or "" for key, value in attrs}
        if tag == "form" and "download" in given.get("id", ""):
            self.action, self.within = given.get("action", ""), "form"
        elif tag == "input" and self.within == "form" and given.get("type") == "hidden":
            self.values[given.get("name", "")] = given.get("value", "")
        elif tag == "title":
            self.within = "title"

    def handle_endtag(self, tag: str) -> None:
        self.within = "" if tag == self.within else self.within

    def handle_data(self, data: str) -> None:
        self.title += data if self.within == "title" else ""


def _extent(response: Any) -> tuple[int, int | None]:
    """Where the body begins in the file, and the bytes of the whole file if they are known."""
    if response.status == 206:
        match = re.fullmatch(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)", response.headers.get("Content-Range", ""))
        if match is None:
            return -1, None
        return int(match[1]), int(match[2]) + 1 if match[3] == "*" else int(match[3])
    length = response.headers.get("Content-Length", "")
    return 0, int(length) if re.fullmatch(r"\d{1,18}", length) else None


def _validator(response: Any) -> str:
    """A strong ETag, or the date of the last change; "" if the server gives neither."""
    tag = response.headers.get("ETag", "")
    return tag if tag.startswith('"') else response.headers.get("Last-Modified", "")


def _check_overlap(response: Any, part: Path, start: int) -> None:
    """Only if the body begins with the last bytes of the part is it the rest of the same file."""
    with part.open("rb") as file:
        file.seek(start)
        known = file.read()
    body = response.read(len(known))
    if not known.startswith(body):
        raise _ChangedError
    if len(body) < len(known):
        raise _InterruptedError("the connection ended early")


def _check_room(part: Path, total: int | None) -> None:
    if total is None:
        return
    if total > LARGEST:
        raise DownloadError(f"{total:,} bytes are announced; at most {LARGEST:,} are accepted")
    free, needed = shutil.disk_usage(part.parent).free, total - _size(part)
    if needed > free:
        raise DownloadError(f"{part.parent} has {free / 1e6:,.1f} MB left and {needed / 1e6:,.1f} MB are needed")


def _append(response: Any, part: Path, bar: "_Bar") -> None:
    """Write the rest of the body to the end of the part."""
    with part.open("ab", buffering=0) as file:
        while block := response.read(BLOCK):
            if not file.tell() and MARKUP.match(block):
                discard(part)
                raise _page_error(_Page(block.decode("utf-8", "replace")).title)
            view = memoryview(block)
            with _disk(part):
                while view:
                    view = view[file.write(view) :]
            bar.advance(len(block))
            if file.tell() > LARGEST:
                discard(part)
                raise DownloadError(f"more than {LARGEST:,} bytes; rejected and removed")


@contextmanager
def _disk(part: Path) -> Iterator[None]:
    """Tell errors of the disk from those of the network."""
    try:
        yield
    except OSError as error:
        raise DownloadError(f"{part} cannot be written ({reason(error).lower()}); free some space") from error


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _record(part: Path) -> Path:
    return part.with_name(f"{part.name}.json")


def _read_record(part: Path) -> _Origin:
    """What is known about a part; nothing, so that it starts again, if that is missing or damaged."""
    with suppress(OSError, ValueError, TypeError, RecursionError):
        origin = _Origin(**json.loads(_record(part).read_text(encoding="utf-8")))
        if isinstance(origin.validator, str) and origin.validator.isprintable():
            return origin
    return _Origin("")


def _why(error: Exception) -> str:
    cause = getattr(error, "reason", error)  # of urllib's errors
    return reason(cause if isinstance(cause, BaseException) else error)


@dataclass
class _Bar:
    """A progress bar of one file."""

    progress: Any
    task: Any

    def start(self, completed: int, total: int | None) -> None:
        self.progress.update(self.task, completed=completed, total=total)

    def advance(self, count: int) -> None:
        self.progress.update(self.task, advance=count)


@contextmanager
def _progress(title: str) -> Iterator[_Bar]:
    """A bar with rate and estimate on a terminal, nothing elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(20), DownloadColumn(), TransferSpeedColumn(),
               TextColumn("left"), TimeRemainingColumn())  # fmt: skip
    terminal = sys.stderr is not None and sys.stderr.isatty()
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not terminal) as progress:
        yield _Bar(progress, progress.add_task(title, total=None))
