"""The server: this machine only, a token, a few addresses, nothing of the disk.

/             the page; with ?token=... once, which leaves a cookie and leads here
/web/FILE     its scripts and style
/index        what there is to see, as JSON
/view/NAME    a view's data, packed; its arguments as a query
/ask?q=...    the answer to a question, as JSON
/events       server-sent events: the revision, when it changes
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import SplitResult, parse_qsl, urlsplit

from stretto.errors import StrettoError
from stretto.studio.serve.access import HEADERS, Access
from stretto.studio.serve.opening import leads_to
from stretto.studio.serve.studio import Studio
from stretto.studio.web import web_file

_PING_S = 15.0
_SILENT_S = 60.0
"""A connection that says nothing for so long is closed."""
_MOST_QUERY = 4096
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}


class StudioServer(ThreadingHTTPServer):
    """Serves one studio on 127.0.0.1, a thread for each connection."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, studio: Studio, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.studio = studio
        self.access = Access(port=self.server_address[1])
        self.is_over = threading.Event()

    @property
    def address(self) -> str:
        """Return the address that opens the page, once."""
        access = self.access
        return f"http://127.0.0.1:{access.port}/?token={access.token}"

    def stop(self) -> None:
        """Stop serving, and end what listens to events."""
        self.is_over.set()
        self.shutdown()
        self.server_close()

    def handle_error(self, request: object, client_address: object) -> None:
        """Pass over connections that break: a browser that has seen enough."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class _Handler(BaseHTTPRequestHandler):
    """Answers one connection."""

    server: StudioServer
    protocol_version = "HTTP/1.1"
    server_version = "stretto"
    sys_version = ""
    timeout = _SILENT_S

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing: addresses may hold the token."""

    def do_GET(self) -> None:
        """Answer, once host and token are right."""
        access = self.server.access
        if not access.allows_host(self.headers.get("Host", "")):
            self._refuse(HTTPStatus.FORBIDDEN, "want the address that was printed")
            return
        asked = urlsplit(self.path)
        query = dict(parse_qsl(asked.query[:_MOST_QUERY], keep_blank_values=True))
        if asked.path == "/" and access.is_token(query.get("token", "")):
            # Not a redirect: browsers keep such a cookie back from one that another
            # page has begun, as the file does that `opening` writes.
            self._send(leads_to("/"), _TYPES[".html"], Cookie=access.set_cookie())
            return
        if not access.allows(dict(self.headers.items())):
            self._refuse(HTTPStatus.UNAUTHORIZED, "want the token that was printed")
            return
        try:
            self._answer(asked, query)
        except StrettoError as e:
            self._refuse(HTTPStatus.BAD_REQUEST, str(e))
        except (BrokenPipeError, ConnectionError, TimeoutError):
            raise
        except Exception as e:  # a fault of ours must not end the server
            what = f"{type(e).__name__}: {' '.join(str(e).split())[:200]}"
            self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, f"our fault: {what}")

    def _answer(self, asked: SplitResult, query: dict[str, str]) -> None:
        head, _, rest = asked.path.lstrip("/").partition("/")
        plain: dict[str, Callable[[], object]] = {
            "index": self.server.studio.index,
            "ask": lambda: self._asked(query.get("q", "")),
        }
        if head == "events" and not rest:
            self._events()
        elif head in plain and not rest:
            said = json.dumps(plain[head](), allow_nan=False)
            self._send(said.encode(), "application/json")
        elif head == "view":
            raw = self.server.studio.view(rest, query)
            self._send(raw, "application/octet-stream")
        else:
            name = "index.html" if asked.path == "/" else rest if head == "web" else ""
            found = web_file(name)
            if found is None:
                self._refuse(HTTPStatus.NOT_FOUND, "there is nothing here")
                return
            self._send(found, _TYPES[name[name.rindex(".") :]])

    def _asked(self, text: str) -> dict[str, object]:
        """Return an answer; that a question was not understood is one, too."""
        try:
            return self.server.studio.ask(text)
        except StrettoError as e:
            return {"error": str(e)}

    def _events(self) -> None:
        """Tell the revision whenever it changes, until somebody leaves."""
        self._head(HTTPStatus.OK, "text/event-stream", None, Connection="close")
        self.close_connection = True
        studio, revision = self.server.studio, -1
        with contextlib.suppress(OSError):
            while not self.server.is_over.is_set():
                if studio.revision != revision:
                    revision = studio.revision
                    self.wfile.write(b"data: %d\n\n" % revision)
                else:
                    self.wfile.write(b": still here\n\n")
                self.wfile.flush()
                studio.wait(revision, _PING_S)

    def _refuse(self, status: HTTPStatus, why: str) -> None:
        self._send(json.dumps({"error": why}).encode(), "application/json", status)

    def _send(
        self,
        body: bytes,
        kind: str,
        status: HTTPStatus = HTTPStatus.OK,
        **headers: str,
    ) -> None:
        self._head(status, kind, len(body), **headers)
        if self.command != "HEAD":
            self.wfile.write(body)

    def _head(
        self, status: HTTPStatus, kind: str, length: int | None, **headers: str
    ) -> None:
        self.send_response(status)
        for name, value in {**HEADERS, **headers}.items():
            self.send_header({"Cookie": "Set-Cookie"}.get(name, name), value)
        if kind:
            self.send_header("Content-Type", kind)
        if length is not None:
            self.send_header("Content-Length", str(length))
        self.end_headers()
