"""Requests that an object store believes: AWS Signature Version 4, in a page."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from urllib.parse import quote

_ALGORITHM = "AWS4-HMAC-SHA256"
_SAFE = "-_.~"


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """Who asks."""

    name: str
    secret: str = field(repr=False)
    token: str = field(default="", repr=False)
    """Of keys that are lent for a while."""
    region: str = "us-east-1"


def _hmac(key: bytes, text: str) -> bytes:
    return hmac.new(key, text.encode(), hashlib.sha256).digest()


def signed(
    key: Key, method: str, host: str, path: str, query: Mapping[str, str],
    headers: Mapping[str, str], body: bytes | memoryview = b"",
    now: datetime | None = None,
) -> tuple[str, dict[str, str]]:  # fmt: skip
    """Return the target of a request and all of its headers; `path` is not quoted."""
    when = now or datetime.now(UTC)
    stamp, day = when.strftime("%Y%m%dT%H%M%SZ"), when.strftime("%Y%m%d")
    digest = hashlib.sha256(body).hexdigest()
    every = {
        **headers,
        "host": host,
        "x-amz-date": stamp,
        "x-amz-content-sha256": digest,
    }
    if key.token:
        every["x-amz-security-token"] = key.token
    lower = {name.lower(): " ".join(value.split()) for name, value in every.items()}
    names = ";".join(sorted(lower))
    lines = "".join(f"{name}:{lower[name]}\n" for name in sorted(lower))
    place = quote(path, safe=f"/{_SAFE}")
    asked = "&".join(
        f"{quote(n, safe=_SAFE)}={quote(v, safe=_SAFE)}"
        for n, v in sorted(query.items())
    )
    request = "\n".join([method, place, asked, lines, names, digest])
    scope = f"{day}/{key.region}/s3/aws4_request"
    hashed = hashlib.sha256(request.encode()).hexdigest()
    made = f"AWS4{key.secret}".encode()
    for word in (day, key.region, "s3", "aws4_request"):
        made = _hmac(made, word)
    proof = _hmac(made, "\n".join([_ALGORITHM, stamp, scope, hashed])).hex()
    every["authorization"] = (
        f"{_ALGORITHM} Credential={key.name}/{scope}, SignedHeaders={names}, "
        f"Signature={proof}"
    )
    return (f"{place}?{asked}" if asked else place), every
