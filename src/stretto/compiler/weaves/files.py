"""Files of weaves that were found: for which call, on how many ranks, of which size."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

from stretto.compiler.weaves.referee import prove
from stretto.compiler.weaves.text import LOADS, Weave
from stretto.compiler.weaves.waits import placed
from stretto.errors import ParseError, ProgramError, why_unread

__all__ = ["FoundWeave"]

_MOST_NBYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class FoundWeave:
    """A weave, and what it was found for."""

    load: str
    ranks: int
    tokens: int
    width: int
    text: str

    @classmethod
    def read(cls, path: str | Path) -> FoundWeave:
        """Read what `stretto search fused -o` wrote, and prove it once more."""
        file = Path(path)
        try:
            if file.stat().st_size > _MOST_NBYTES:
                raise ParseError(f"{file}: want at most {_MOST_NBYTES >> 20} MiB")
            top = tomllib.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as e:
            raise ParseError(f"{file}: {why_unread(e)}") from None
        load, text = str(top.get("load")), top.get("found")
        known = top.get("problem") == "fused" and load in LOADS
        if not known or not isinstance(text, str):
            raise ParseError(f"{file}: want what stretto search fused -o wrote")
        ranks, tokens, width = (_size(top.get(n)) for n in ("ranks", "tokens", "width"))
        if not (2 <= ranks <= 8 and tokens and width):
            raise ParseError(f"{file}: want ranks (2 to 8), tokens and width")
        shape = LOADS[load]
        try:
            weave = Weave.parse(text, shape, ranks)
            prove(placed(weave, shape), shape, ranks, weave.parts)
        except ProgramError as e:
            raise ParseError(f"{file}: found: {e}") from None
        return cls(load, ranks, tokens, width, text)


def _size(value: object) -> int:
    """Return a size; 0 for what is none."""
    return value if type(value) is int and value > 0 else 0
