"""What a compiled function is made of: every file whose text goes into it."""

from __future__ import annotations

import functools
import hashlib
import re
from pathlib import Path

_IMPORT = re.compile(r"^from (stretto[\w.]*) import (\([^)]*\)|[^\n]*)", re.MULTILINE)
_PACKAGE = Path(__file__).parents[2]


@functools.cache
def sources_of(file: str) -> str:
    """Return a hash of everything that is compiled together with a file's functions.

    Constants and functions of other files are compiled into a function, too: of those
    that lie beside it, of this room, and of all that these import.
    """
    folders = {Path(__file__).parent, Path(file).parent}
    files = {path for folder in folders for path in folder.glob("*.py")}
    new = set(files)
    while new:
        new = {found for path in new for found in imported_by(path)} - files
        files |= new
    texts = [path.read_bytes() for path in sorted(files)]
    return hashlib.sha256(b"".join(texts)).hexdigest()[:12]


@functools.cache
def imported_by(path: Path) -> frozenset[Path]:
    """Return the files of ours that a file imports; a room's facade is not followed."""
    if path.name == "__init__.py":
        return frozenset()
    found = set()
    for module, names in _IMPORT.findall(path.read_text(encoding="utf-8")):
        place = _PACKAGE.joinpath(*module.split(".")[1:])
        places = [place, *(place / name for name in re.findall(r"\w+", names))]
        for one in places:
            found |= {one.with_suffix(".py"), one / "__init__.py"}
    return frozenset(one for one in found if one.is_file())
