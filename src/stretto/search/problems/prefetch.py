"""What a cache evicts and what it fetches ahead, found together or apart.

`fetch` says after a request whether to fetch ahead along its stream's last stride,
`ahead` how many strides far, and of a few lines the one with the least `score` leaves.
A trace is what `valgrind --tool=lackey --trace-mem=yes` prints, or CSV with a column
`address`, and `stream` if there are several.
"""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from stretto.errors import CallError, ParseError, why_unread
from stretto.search.evolve.problem import PolicyProblem, Verdict
from stretto.search.language import NUMBER, TRUTH, Form, Policy, code_of
from stretto.search.problems._fetching import FEATURES, replay_fetching

__all__ = ["OFFER", "PrefetchProblem"]

_LINE = 64
_MOST_REQUESTS = 300_000
_OF_UNUSED = 0.05
"""What a line costs that was fetched and not used, in misses."""
_PLAIN = {"fetch": "1 < 0", "ahead": "1", "score": "-age"}
_KINDS = {"fetch": TRUTH, "ahead": NUMBER, "score": NUMBER}
_PARTS = {"both": tuple(_KINDS), "fetch": ("fetch", "ahead"), "score": ("score",)}


class PrefetchProblem(PolicyProblem):
    """Misses, and what was fetched in vain, on the first half of a trace."""

    name: ClassVar[str] = "prefetch"
    rungs = ("a quarter", "the first half")
    form: ClassVar[Form] = Form(
        FEATURES, kinds=_KINDS, defaults=_PLAIN, orders=True,
        largest={"age": 1e5, "count": 50, "gap": 1e5, "unused": 2, "run": 50,
                 "stride": 100, "right": 1.01},
    )  # fmt: skip
    begin: ClassVar[Sequence[str]] = (
        "score = -age",
        "fetch = run > 1",
        "fetch = run > 2 and right > 0.3\nahead = 2",
        "fetch = right > 0.5\nahead = 1",
        "fetch = run > 0\nscore = where(unused > 0, -age * 2, -age)",
        "fetch = run > 1\nahead = run\nscore = count / age",
    )

    def __init__(self, trace: str, size: float = 0.1, part: str = "both") -> None:
        """Read a trace; `size`: of the cache, as a share of the lines in the trace.

        `part`: what is searched: both, or only when to `fetch`, or only the `score`.
        """
        if not 0 < size <= 1:
            raise CallError(f"size={size:g}: want a share, above 0 to 1")
        if part not in _PARTS:
            raise CallError(f"part={part!r}: want {', '.join(_PARTS)}")
        self._free, self._size = _PARTS[part], size
        self._addresses, self._streams = _read(Path(trace))
        self._capacity = max(8, int(size * len(np.unique(self._addresses))))

    @property
    def said(self) -> Mapping[str, str]:
        """Return the trace by its digest, the size, and what is free."""
        data = self._addresses.tobytes() + self._streams.tobytes()
        return {
            "trace": hashlib.sha256(data).hexdigest()[:16],
            "size": repr(self._size), "part": " ".join(self._free),
        }  # fmt: skip

    def spell(self, candidate: Policy) -> str:
        """Return the parts that are searched; the others are as LRU has them."""
        plain = dict(self.form.parse("").parts)
        kept = {n: t if n in self._free else plain[n] for n, t in candidate.parts}
        return self.form.spell(Policy(tuple(kept.items())))

    def judge(self, candidate: Policy, rung: int, *, fresh: int) -> Verdict:
        """Return misses and what was fetched in vain, for each request."""
        half = len(self._addresses) // 2
        found = self.figures(candidate, 0, half if rung else half // 2)
        return Verdict.of(found.pop("lack"), **found)

    def figures(self, policy: Policy, begin: int, end: int) -> dict[str, float]:
        """Return what happens from `begin` to `end`; before, the cache fills."""
        codes = [code_of(policy[name], FEATURES) for name in _KINDS]
        packed: list[Any] = []
        for code in codes:
            packed += [code.words, code.values]
        counts = np.zeros(5, np.int64)
        many = int(self._streams.max()) + 1
        with np.errstate(all="ignore"):
            call: Any = replay_fetching
            call(
                self._addresses[:end], self._streams[:end], many, self._capacity,
                begin, *packed, counts,
            )  # fmt: skip
        asked = max(1, end - begin)
        _, missed, fetched, unused, used = (float(c) for c in counts)
        return {
            "lack": (missed + _OF_UNUSED * unused) / asked,
            "hit_rate": 1 - missed / asked,
            "accuracy": used / fetched if fetched else 1.0,
            "fetched": fetched / asked,
        }

    def held_out(self, candidate: Policy) -> Mapping[str, float]:
        """Return the same of the second half, after the first."""
        whole = len(self._addresses)
        return self.figures(candidate, whole // 2, whole)


def _read(path: Path) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the lines that a trace asks for, and by which stream each, from 0 on."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = _columns(path, file) if path.suffix == ".csv" else _lackey(file)
            found = list(islice(rows, _MOST_REQUESTS))
    except (OSError, ValueError) as e:
        raise ParseError(f"{path}: {why_unread(e)}") from None
    except csv.Error as e:
        raise ParseError(f"{path}: {e}; want CSV") from None
    if len(found) < 4:
        raise ParseError(f"{path}: {len(found)} requests; want a trace of addresses")
    addresses = np.array([a // _LINE for a, _ in found], np.int64)
    streams = np.unique([s for _, s in found], return_inverse=True)[1]
    return addresses, streams.astype(np.int64)


def _lackey(lines: Iterator[str]) -> Iterator[tuple[int, int]]:
    """Yield loads and stores, each with the instruction before it."""
    instruction = 0
    for line in lines:
        kind, _, rest = line.strip().partition(" ")
        if kind not in ("I", "L", "S", "M"):
            continue  # what valgrind and the program say besides
        address = int(rest.strip().partition(",")[0], 16) & ((1 << 62) - 1)
        if kind == "I":
            instruction = address
        else:
            yield address, instruction


def _columns(path: Path, lines: Iterator[str]) -> Iterator[tuple[int, int]]:
    rows = csv.DictReader(lines)
    if "address" not in (rows.fieldnames or ()):
        raise ParseError(f"{path}: no column address")
    for row in rows:
        where = f"{path}:{rows.line_num}"
        try:
            one = int(row["address"], 0), int(row.get("stream") or "0", 0)
        except (TypeError, ValueError):
            raise ParseError(f"{where}: {row!r:.80}; want whole numbers") from None
        if not 0 <= one[0] < 1 << 62 or not abs(one[1]) < 1 << 62:
            raise ParseError(f"{where}: {one[0]}; want 0 or more, below 2**62")
        yield one


OFFER = PrefetchProblem
