"""The page: files that browsers run as they are, and the same as one file.

Modules are joined by leaving out what ties them: names are distinct in all of them, so
they can stand in one scope. A test holds them to that.
"""

from __future__ import annotations

import functools
import re
from importlib import resources

__all__ = ["bundled", "web_file", "web_names"]

_RELATIVE = re.compile(
    r'^import (?:[^;]*? from )?"(\.{1,2}/[\w./-]+)";\n', re.MULTILINE
)
_EXPORT = re.compile(r"^export (?=(?:async )?function|const|let|class)", re.MULTILINE)
_START = "app.js"


@functools.cache
def web_names() -> tuple[str, ...]:
    """Return the files of the page, by their path."""
    root = resources.files(__name__)
    found = [f.name for f in root.iterdir() if f.is_file()]
    views = [f"views/{f.name}" for f in (root / "views").iterdir() if f.is_file()]
    kept = (".js", ".css", ".html", ".svg")
    return tuple(sorted(n for n in (*found, *views) if n.endswith(kept)))


@functools.cache
def web_file(name: str) -> bytes | None:
    """Return a file of the page; None: there is none of that name, whatever it says."""
    if name not in web_names():
        return None
    return (resources.files(__name__) / name).read_bytes()


def bundled() -> str:
    """Return all scripts as one, each after those that it needs."""
    done: dict[str, str] = {}
    _add(_START, done, ())
    return "\n".join(done.values())


def _add(name: str, done: dict[str, str], above: tuple[str, ...]) -> None:
    if name in done:
        return
    assert name not in above, f"{name} imports itself, through {above}"
    raw = web_file(name)
    assert raw is not None, f"{above[-1:]} imports {name}"
    text = raw.decode()
    for target in _RELATIVE.findall(text):
        _add(_resolved(name, target), done, (*above, name))
    done[name] = _EXPORT.sub("", _RELATIVE.sub("", text))


def _resolved(name: str, target: str) -> str:
    """Return the path of an imported file: `../dom.js` of `views/a.js` is `dom.js`."""
    parts = name.split("/")[:-1]
    for part in target.split("/"):
        if part == "..":
            parts.pop()
        elif part != ".":
            parts.append(part)
    return "/".join(parts)
