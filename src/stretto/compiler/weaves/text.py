"""A weave: what each rank does in a call that computes and moves, step by step.

    parts=2 | m free; a push 1.0; a push 1.1; m do 0.0-1; m came 1.0-1; m do 1.0-1

Every rank does the same. A share is what one rank has for another, cut into parts;
`1.0-1` are the parts 0 and 1 of the share of the rank after this one, `0` is its own.
A step is put on a stream: `m` the caller's, `n` a second one that computes, `a` and `b`
copies, `s` meets beside. Waits are not written: they follow from what steps read.

    free        all meet: everybody has ended the call before
    store       own input goes where others reach it
    stored      all meet: everybody's is there
    pull 1.0    fetch a part from where its rank has stored it
    push 1.0    bring own part to the rank for which it is 1.0
    came 1.0    all meet: what was pushed there has come
    do 1.0      compute with a part
    send 1.0    bring the result to the rank whose share it is
    sent 1.0    all meet: what was sent has come
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from stretto.errors import ParseError

__all__ = ["LOADS", "MEETS", "STREAMS", "LoadShape", "PartsBox", "Weave", "WeaveStep"]

STREAMS = "mnabs"
MEETS = ("free", "stored", "came", "sent")
_WITH_BOX = ("pull", "push", "came", "do", "send", "sent")
_MOST_PARTS, _MOST_STEPS, _MOST_SPARE = 16, 160, 64
_STEP = re.compile(r"([mnabs]) ([a-z]+)(?: (\d+)(?:-(\d+))?\.(\d+)(?:-(\d+))?)?")
_HEAD = re.compile(r"parts=(\d+)( graph)?(?: spare=(\d+))?")


@dataclass(frozen=True, slots=True)
class LoadShape:
    """What a call of a kind has to do."""

    comes: bool = False
    """Whether it computes with what other ranks have."""
    goes: bool = False
    """Whether results go to other ranks."""
    own: bool = True
    """Whether a rank computes with its own share, too."""
    chain: bool = False
    """Whether a part is computed from the one before, as layers are."""
    parts: int = 0
    """How many parts a share has; 0: as many as a weave likes."""


LOADS: Mapping[str, LoadShape] = {
    "gemm_all_gather": LoadShape(comes=True),
    "gemm_reduce_scatter": LoadShape(goes=True),
    "all_gather_attention": LoadShape(comes=True),
    "moe_dispatch_combine": LoadShape(comes=True, goes=True),
    "kv_transfer": LoadShape(goes=True, own=False, chain=True, parts=16),
}
"""Kinds of calls. The last is two ranks' affair: layers on one, their keys and values
to the other."""


class PartsBox(NamedTuple):
    """Parts of shares: ranks so far behind this one, first and last, and parts."""

    low: int
    high: int
    first: int
    last: int

    def __str__(self) -> str:
        shifts, parts = (
            f"{a}" if a == b else f"{a}-{b}"
            for a, b in ((self.low, self.high), (self.first, self.last))
        )
        return f"{shifts}.{parts}"

    @property
    def cells(self) -> list[tuple[int, int]]:
        """Return each share and part."""
        return [
            (s, p)
            for s in range(self.low, self.high + 1)
            for p in range(self.first, self.last + 1)
        ]


class WeaveStep(NamedTuple):
    """One step: on which stream, what, with which parts."""

    stream: str
    do: str
    box: PartsBox | None = None

    def __str__(self) -> str:
        return f"{self.stream} {self.do}" + (f" {self.box}" if self.box else "")


@dataclass(frozen=True, slots=True)
class Weave:
    """Steps in the order in which the host gives them to streams."""

    parts: int
    steps: tuple[WeaveStep, ...]
    graph: bool = False
    """Whether a call is captured once, and replayed."""
    spare: int = 0
    """Multiprocessors that matmuls leave to kernels beside them."""

    def __str__(self) -> str:
        head = f"parts={self.parts}" + " graph" * self.graph
        head += f" spare={self.spare}" if self.spare else ""
        return f"{head} | " + "; ".join(map(str, self.steps))

    @classmethod
    def parse(cls, text: str, shape: LoadShape, ranks: int) -> Weave:
        """Return the weave of a text, which prints as it was."""
        head, _, rest = text.partition(" | ")
        found = _HEAD.fullmatch(head)
        if not found:
            raise ParseError(f"{head[:60]!r}: want such as 'parts=2 graph spare=8 | '")
        parts, spare = int(found[1]), int(found[3] or 0)
        if not 1 <= parts <= _MOST_PARTS or (shape.parts or parts) != parts:
            want = shape.parts or f"1 to {_MOST_PARTS}"
            raise ParseError(f"parts={parts}: want {want}")
        if spare > _MOST_SPARE:
            raise ParseError(f"spare={spare}: want 0 to {_MOST_SPARE}")
        words = rest.split("; ")
        if len(words) > _MOST_STEPS:
            raise ParseError(f"{len(words)} steps: want at most {_MOST_STEPS}")
        steps = tuple(_step(word, parts, ranks) for word in words)
        made = cls(parts, steps, bool(found[2]), spare)
        if str(made) != text:
            raise ParseError(f"{text[:80]!r}: want it written as {str(made)[:80]!r}")
        return made


def _step(word: str, parts: int, ranks: int) -> WeaveStep:
    found = _STEP.fullmatch(word)
    if not found:
        raise ParseError(f"step {word[:40]!r}: want such as 'm do 1.0-1'")
    stream, do = found[1], found[2]
    if do not in (*_WITH_BOX, "free", "store", "stored"):
        raise ParseError(f"step {word[:40]!r}: no step is called {do[:40]!r}")
    if (found[3] is not None) != (do in _WITH_BOX):
        want = "parts, such as 1.0" if do in _WITH_BOX else "no parts"
        raise ParseError(f"step {word[:40]!r}: want {want}")
    if found[3] is None:
        return WeaveStep(stream, do)
    low, first = int(found[3]), int(found[5])
    box = PartsBox(low, int(found[4] or low), first, int(found[6] or first))
    least = 0 if do == "do" else 1
    if not (least <= box.low <= box.high < ranks and box.first <= box.last < parts):
        raise ParseError(
            f"step {word[:40]!r}: want shares {least} to {ranks - 1} and parts 0 to "
            f"{parts - 1}, in order"
        )
    return WeaveStep(stream, do, box)
