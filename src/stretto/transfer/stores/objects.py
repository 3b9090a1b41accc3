"""An object store with S3's interface: an object a piece, its sum among its headers.

    PREFIX/NAME/layout.json       the layout, and how long pieces are
    PREFIX/NAME/0/00000003        a piece of a tensor

Requests are signed; the store checks each body by its SHA-256. What fails for a while
is asked again.
"""

from __future__ import annotations

import http.client
import os
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit
from xml.etree import ElementTree

from stretto.errors import CallError, reading
from stretto.fabric.patience import check_deadline
from stretto.transfer.stores.signing import Key, signed
from stretto.transfer.stores.store import Missing, Piece, Store, StoreError

_SUM = "x-amz-meta-stretto-crc32"
_TEXT = "layout.json"
_TRIES, _PAUSE_S = 4, 0.05
_LATER = (429, 500, 502, 503, 504)
_SAID = 300


class Objects(Store):
    """Objects at a URL, such as "https://s3.eu-central-1.amazonaws.com/bucket/prefix".

    Without a key, that of the environment: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY,
    AWS_SESSION_TOKEN and AWS_REGION.
    """

    kind = "object store"
    takes_parts = False

    def __init__(
        self, url: str, *, key: str = "", secret: str = "", token: str = "",
        region: str = "", streams: int = 16, timeout_s: float = 30.0,
    ) -> None:  # fmt: skip
        check_deadline(timeout_s, url, "timeout_s")
        split, env = urlsplit(url), os.environ
        if split.scheme not in ("http", "https") or not split.hostname:
            raise CallError(f"{url!r}; want https://HOST/BUCKET or with a prefix")
        self._bucket, _, prefix = split.path.strip("/").partition("/")
        if not self._bucket:
            raise CallError(f"{url!r} names no bucket; want https://HOST/BUCKET")
        self._prefix = f"{prefix}/" if prefix else ""
        self._host, self._is_tls = split.netloc, split.scheme == "https"
        self.where, self.streams, self._timeout_s = url, streams, timeout_s
        self._key = Key(
            name=key or env.get("AWS_ACCESS_KEY_ID", ""),
            secret=secret or env.get("AWS_SECRET_ACCESS_KEY", ""),
            token=token or env.get("AWS_SESSION_TOKEN", ""),
            region=region or env.get("AWS_REGION", "us-east-1"),
        )
        if not self._key.name or not self._key.secret:
            raise CallError(
                "an object store needs a key: pass key= and secret=, or set "
                "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            )
        self._mine = threading.local()
        self._connections: list[http.client.HTTPConnection] = []
        self._lock = threading.Lock()

    # Requests.

    def _connection(self) -> http.client.HTTPConnection:
        """Return this thread's connection."""
        found: http.client.HTTPConnection | None = getattr(self._mine, "it", None)
        if found is None:
            kind = http.client.HTTPSConnection if self._is_tls else None
            make = kind or http.client.HTTPConnection
            found = self._mine.it = make(self._host, timeout=self._timeout_s)
            with self._lock:
                self._connections.append(found)
        return found

    def _ask(
        self, method: str, name: str, *, query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None, body: bytes | memoryview = b"",
        into: memoryview | None = None,
    ) -> tuple[int, Any, bytes]:  # fmt: skip
        """Return a request's status, headers and body; what fails is asked again."""
        path = f"/{self._bucket}" + (f"/{self._prefix}{name}" if name else "")
        why = ""
        for nth in range(_TRIES):
            if nth:
                time.sleep(_PAUSE_S * 4 ** (nth - 1))
            connection = self._connection()
            target, every = signed(
                self._key, method, self._host, path, query or {}, headers or {}, body
            )
            try:
                connection.request(method, target, body or None, every)
                answer = connection.getresponse()
                if answer.status in _LATER:
                    why = f"{answer.status} {_said(answer.read())}"
                    continue
                if into is not None and answer.status in (200, 206):
                    _fill(answer, into)
                    return answer.status, answer.headers, b""
                return answer.status, answer.headers, answer.read()
            except (OSError, http.client.HTTPException) as e:
                connection.close()
                why = f"{type(e).__name__}: {e}"
        raise StoreError(f"{self.where}, {method} {name}: {why}; asked {_TRIES} times")

    def _refused(self, method: str, name: str, status: int, said: bytes) -> StoreError:
        if status == 404 and b"NoSuchBucket" not in said:
            return Missing(f"{self.where} has no {name}")
        return StoreError(f"{self.where}, {method} {name}: {status} {_said(said)}")

    def _put(self, name: str, body: bytes | memoryview, **headers: str) -> None:
        sent = {n.replace("_", "-"): v for n, v in headers.items()}
        status, _, said = self._ask("PUT", name, headers=sent, body=body)
        if status != 200:
            raise self._refused("PUT", name, status, said)

    # Pieces.

    def _name(self, piece: Piece) -> str:
        return f"{piece.volume}/{piece.part}/{piece.number:08d}"

    def read(self, piece: Piece, begin: int, into: memoryview) -> int | None:
        """Read a part of a piece."""
        name, headers = self._name(piece), {}
        if len(into) < piece.nbytes:
            headers["range"] = f"bytes={begin}-{begin + len(into) - 1}"
        status, told, said = self._ask("GET", name, headers=headers, into=into)
        if status not in (200, 206) or (status == 200) == bool(headers):
            raise self._refused("GET", name, status, said)
        kept = told.get(_SUM)
        try:
            return None if kept is None else int(kept, 16)
        except ValueError:
            raise StoreError(f"{self.where}, {name}: its sum is {kept!r}") from None

    def write(
        self, piece: Piece, begin: int, data: memoryview, total: int | None
    ) -> None:
        """Store a piece; `begin` is 0."""
        assert begin == 0, "an object is stored as a whole"
        assert len(data) == piece.nbytes, "an object is stored as a whole"
        headers = {} if total is None else {_SUM: f"{total:08x}"}
        self._put(self._name(piece), data, **headers)

    # Texts.

    def put_text(self, name: str, text: bytes) -> None:
        """Keep a volume's text."""
        self._put(f"{name}/{_TEXT}", text)

    def get_text(self, name: str) -> bytes:
        """Return it."""
        status, _, said = self._ask("GET", f"{name}/{_TEXT}")
        if status != 200:
            raise self._refused("GET", f"{name}/{_TEXT}", status, said)
        return said

    def names(self, prefix: str) -> Sequence[str]:
        """Return volumes whose names begin so."""
        ends, found = f"/{_TEXT}", (n for n in self._listed(prefix))
        return sorted(n.removesuffix(ends) for n in found if n.endswith(ends))

    def _listed(self, prefix: str) -> list[str]:
        query = {"list-type": "2", "prefix": f"{self._prefix}{prefix}"}
        found: list[str] = []
        while True:
            status, _, said = self._ask("GET", "", query=query)
            if status != 200:
                raise self._refused("GET", prefix, status, said)
            if b"<!DOCTYPE" in said:
                raise StoreError(f"{self.where} lists {prefix!r} with <!DOCTYPE")
            with reading(StoreError, f"{self.where} lists {prefix!r}", "XML"):
                tree = ElementTree.fromstring(said)
            space = tree.tag.partition("}")[0] + "}" if "}" in tree.tag else ""
            keys = (one.text or "" for one in tree.iter(f"{space}Key"))
            found += [key.removeprefix(self._prefix) for key in keys]
            token = tree.findtext(f"{space}NextContinuationToken")
            if not token:
                return found
            query = {**query, "continuation-token": token}

    def remove(self, volume: str) -> None:
        """Delete a volume's objects, its text first."""
        listed = self._listed(f"{volume}/")
        for name in sorted(listed, key=lambda n: n != f"{volume}/{_TEXT}"):
            status, _, said = self._ask("DELETE", name)
            if status not in (200, 204, 404):
                raise self._refused("DELETE", name, status, said)

    def close(self) -> None:
        """End all connections."""
        with self._lock:
            for connection in self._connections:
                connection.close()
            self._connections.clear()
            self._mine = threading.local()


def _fill(answer: http.client.HTTPResponse, into: memoryview) -> None:
    """Read a body that must be so long; OSError: it is not."""
    got = 0
    while got < len(into):
        some = answer.readinto(into[got:])
        if not some:
            raise OSError(f"{got} bytes of {len(into)}")
        got += some
    if answer.read():
        raise OSError(f"more than {len(into)} bytes")


def _said(body: bytes) -> str:
    return body[:_SAID].decode("utf-8", "replace").strip() or "and nothing else"
