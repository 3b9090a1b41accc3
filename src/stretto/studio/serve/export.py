"""One file with everything in it: the page, its scripts, and every view's data.

It needs no server and asks nobody. Data are packed, compressed, and written in base64,
which no text of a recording can leave.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from typing import Any

from stretto.errors import StrettoError
from stretto.studio.serve.studio import Studio
from stretto.studio.web import bundled, web_file

_VARIANTS: dict[str, tuple[dict[str, str], ...]] = {
    "collective": ({}, {"by": "program"}, {"by": "time"}),
}
"""Arguments that a page without a server can choose among, beside none."""


def exported(studio: Studio) -> str:
    """Return the page as one text."""
    index = studio.index()
    data: dict[str, str] = {}
    for view in index["views"]:
        for args in _VARIANTS.get(view["name"], ({},)):
            key = "&".join([view["name"], *(f"{k}={v}" for k, v in args.items())])
            try:
                data[key] = _encoded(studio.view(view["name"], args))
            except StrettoError as e:
                data[key] = _encoded_text({"error": str(e)})
    answers = _answers(studio, index) if index["asks"] else {}
    kept = {"index": {**index, "state": "ready"}, "answers": answers, "data": data}
    return _page(json.dumps(kept, separators=(",", ":")))


def _answers(studio: Studio, index: dict[str, Any]) -> dict[str, Any]:
    """Return the answers to the examples: nobody is there to be asked others."""
    found = {}
    for text in index["examples"]:
        try:
            found[text] = studio.ask(text)
        except StrettoError as e:
            found[text] = {"error": str(e)}
    return found


def _encoded(raw: bytes) -> str:
    return base64.b64encode(zlib.compress(raw, 6)).decode()


def _encoded_text(document: dict[str, str]) -> str:
    return "!" + base64.b64encode(json.dumps(document).encode()).decode()


def _page(data: str) -> str:
    html, style = _text("index.html"), _text("style.css")
    script = bundled()
    assert "</script" not in script, "a script would end in its own midst"
    assert "</style" not in style, "a style would end in its own midst"
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    inside = base64.b64encode(zlib.compress(data.encode(), 6)).decode()
    return (
        html.replace(
            '<link rel="stylesheet" href="/web/style.css">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
            f"<style>{style}</style>",
        )
        .replace(
            '<script type="module" src="/web/app.js"></script>',
            f'<script type="text/plain" id="embedded">{inside}</script>\n'
            f'<script type="module">{script}</script>',
        )
        .replace('href="/web/icon.svg"', 'href="data:,"')
    )


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _text(name: str) -> str:
    raw = web_file(name)
    assert raw is not None, f"the wheel has no {name}"
    return raw.decode()
