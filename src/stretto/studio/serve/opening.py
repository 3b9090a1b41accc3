"""Open a browser without the token on its command line, which every user can read.

A page that its owner alone may read leads to the address: a browser is given its name.
"""

from __future__ import annotations

import contextlib
import html
import os
import tempfile
import webbrowser
from collections.abc import Iterator
from pathlib import Path


def leads_to(address: str) -> bytes:
    """Return a page that leads on to an address, without a script."""
    where = html.escape(address)
    return (
        f'<!doctype html><meta charset="utf-8"><title>stretto studio</title>'
        '<link rel="icon" href="data:,">'
        f'<meta http-equiv="refresh" content="0; url={where}">'
        f'<a href="{where}">stretto studio</a>\n'
    ).encode()


@contextlib.contextmanager
def opened(address: str) -> Iterator[None]:
    """Have a browser open an address; the page that leads there goes with the block."""
    number, name = tempfile.mkstemp(prefix="stretto-studio-", suffix=".html")
    page = Path(name)
    try:
        with os.fdopen(number, "wb") as file:
            file.write(leads_to(address))
        webbrowser.open(page.as_uri())
        yield
    finally:
        page.unlink(missing_ok=True)
