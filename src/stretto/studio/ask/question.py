"""The language of questions: a subject, then filters in any order.

    slowest links    busiest links      late ranks        slowest collectives
    times            traffic            why is step N slow
    why is rank N late                  what is rank N doing
    hangs            summary

    in COLLECTIVE    over SIZE          under SIZE        on COMMUNICATOR
    last DURATION    between TIME and TIME                rank N         top N

A size is written `4K`, `1M`, binary; a time `3 s`, `20ms`, `5us`, `minute`, from the
first moment of the recording. `the`, `all`, `show` and question marks say nothing.
"""

from __future__ import annotations

import difflib
import enum
import re
from dataclasses import dataclass

from stretto.errors import CallError
from stretto.program import collectives
from stretto.studio.ask.phrases import nearest, rewritten

EXAMPLES = (
    "slowest link last minute",
    "busiest links top 5",
    "late ranks in all_reduce over 1M",
    "why is step 812 slow",
    "why is rank 3 late",
    "slowest collectives top 5",
    "times in all_reduce",
    "traffic rank 0",
    "what is rank 0 doing",
    "hangs",
    "summary",
)


class Subject(enum.Enum):
    """What is asked; the value is how it is written. `N` is a number."""

    SLOWEST_LINKS = "slowest links"
    BUSIEST_LINKS = "busiest links"
    LATE_RANKS = "late ranks"
    SLOWEST = "slowest collectives"
    TIMES = "times"
    TRAFFIC = "traffic"
    WHY_STEP = "why is step N slow"
    WHY_RANK = "why is rank N late"
    DOING = "what is rank N doing"
    HANGS = "hangs"
    SUMMARY = "summary"


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question that was understood; its text is the plainest way to ask it."""

    subject: Subject
    number: int = -1
    """The N of the subject."""
    collective: str = ""
    over: int = -1
    """Bytes, as is `under`; -1: no limit."""
    under: int = -1
    comm: str = ""
    last_us: float = -1.0
    between_us: tuple[float, float] | None = None
    rank: int = -1
    top: int = 10

    def __str__(self) -> str:
        """Return the question as this language writes it."""
        said = [self.subject.value.replace("N", str(self.number))]
        if self.collective:
            said.append(f"in {self.collective}")
        if self.over >= 0:
            said.append(f"over {self.over}")
        if self.under >= 0:
            said.append(f"under {self.under}")
        if self.comm:
            said.append(f'on "{self.comm}"')
        if self.last_us >= 0:
            said.append(f"last {_spell_time(self.last_us)}")
        if self.between_us is not None:
            low, high = map(_spell_time, self.between_us)
            said.append(f"between {low} and {high}")
        if self.rank >= 0:
            said.append(f"rank {self.rank}")
        if self.top != 10:
            said.append(f"top {self.top}")
        return " ".join(said)


_SURE = 3
"""After so many words of a subject only its number can be wrong."""
_MOST_TEXT, _MOST_NUMBER, _MOST_TOP = 400, 1 << 53, 1000
_TOKEN = re.compile(r'"[^"]*"|[^\s",?!]+|"')
_SILENT = frozenset({"the", "all", "show", "me", "please", "a", "of"})
_ALIKE = {
    "link": "links",
    "rank": "ranks",
    "late": "late",
    "latest": "late",
    "collective": "collectives",
    "calls": "collectives",
    "call": "collectives",
    "steps": "collectives",
    "time": "times",
}
_SAID = {
    ("slowest", "links"): Subject.SLOWEST_LINKS,
    ("slow", "links"): Subject.SLOWEST_LINKS,
    ("busiest", "links"): Subject.BUSIEST_LINKS,
    ("late", "ranks"): Subject.LATE_RANKS,
    ("who", "is", "late"): Subject.LATE_RANKS,
    ("slowest", "collectives"): Subject.SLOWEST,
    ("times",): Subject.TIMES,
    ("traffic",): Subject.TRAFFIC,
    ("hangs",): Subject.HANGS,
    ("summary",): Subject.SUMMARY,
    ("why", "is", "step", "N", "slow"): Subject.WHY_STEP,
    ("why", "is", "rank", "N", "late"): Subject.WHY_RANK,
    ("why", "is", "rank", "N", "slow"): Subject.WHY_RANK,
    ("what", "is", "rank", "N", "doing"): Subject.DOING,
}
_FILTERS = ("in", "over", "under", "on", "last", "between", "rank", "top")
_OF_CALLS = frozenset(
    {"collective", "over", "under", "comm", "last_us", "between_us", "top"}
)
_TAKEN = {
    **dict.fromkeys(Subject, _OF_CALLS),
    Subject.SLOWEST_LINKS: _OF_CALLS | {"rank"},
    Subject.BUSIEST_LINKS: _OF_CALLS | {"rank"},
    Subject.TRAFFIC: _OF_CALLS | {"rank"},
    Subject.WHY_STEP: frozenset({"comm", "top"}),
    Subject.DOING: frozenset({"top"}),
    Subject.HANGS: frozenset(),
    Subject.SUMMARY: frozenset(),
}
"""The filters that mean something to a subject: others are refused, not ignored."""
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)([kmgt]?)(?:i?b)?", re.IGNORECASE)
_POWERS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}
_TIME = re.compile(r"([0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?)?([a-z]*)", re.IGNORECASE)
_UNITS_US = {
    **dict.fromkeys(("us", "microsecond", "microseconds"), 1.0),
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), 1e3),
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1e6),
    **dict.fromkeys(("min", "minute", "minutes"), 6e7),
    **dict.fromkeys(("h", "hour", "hours"), 3.6e9),
}


def parse_question(text: str) -> Question:
    """Return what a text asks; an error says at which word, and what would do."""
    if len(text) > _MOST_TEXT:
        raise CallError(f"{len(text)} characters; want at most {_MOST_TEXT}")
    parser = _Parser(text)
    if not parser.begins_well and (written := rewritten(text)):
        parser = _Parser(written)
    return parser.question()


class _Parser:
    """Reads words one after another; every complaint says which it is at."""

    def __init__(self, text: str) -> None:
        found: list[str] = _TOKEN.findall(text)
        self._words = [w for w in found if w.lower() not in _SILENT]
        self._at = 0

    @property
    def begins_well(self) -> bool:
        """Return whether it begins as a subject does: then its words are meant."""
        for pattern in _SAID:
            agreed = self._agreed(pattern)
            if agreed == len(pattern) or (agreed >= _SURE and pattern[agreed] == "N"):
                return True
        return False

    def question(self) -> Question:
        if not self._words:
            raise CallError(f"nothing was asked; try: {EXAMPLES[0]}")
        subject, number = self._subject()
        given: dict[str, object] = {}
        while self._at < len(self._words):
            at = self._at
            name, value = self._filter()
            if name not in _TAKEN[subject]:
                self._at = at
                plain = f"{self._words[at]!r}, which says nothing of {subject.value}"
                raise self._wrong(plain, "another filter, or none")
            if name in given:
                self._at = at
                raise self._wrong(
                    f"{self._words[at]!r} a second time", "each filter once"
                )
            given[name] = value
        return Question(subject=subject, number=number, **given)  # type: ignore[arg-type]

    def _subject(self) -> tuple[Subject, int]:
        best = 0
        for pattern, subject in _SAID.items():
            number = self._matches(pattern)
            if number is not None:
                self._at = len(pattern)
                return subject, number
            best = max(best, self._agreed(pattern))
        self._at = min(best, len(self._words) - 1)
        heads = [
            " ".join(pattern) for pattern in _SAID if self._agreed(pattern) >= best
        ]
        near = nearest(" ".join(self._words), tuple(map(" ".join, _SAID)))
        want = f"one of: {'; '.join(heads)}. Nearest are: {'; '.join(near)}"
        raise self._wrong(self._spelled(), want)

    def _matches(self, pattern: tuple[str, ...]) -> int | None:
        """Return the pattern's number, -1 without one; None: the words are others."""
        if self._agreed(pattern) < len(pattern):
            return None
        if "N" not in pattern:
            return -1
        return int(self._words[pattern.index("N")])

    def _agreed(self, pattern: tuple[str, ...]) -> int:
        """Return how many words of a pattern are there."""
        for at, want in enumerate(pattern):
            if at >= len(self._words):
                return at
            word = self._words[at].lower()
            is_number = word.isascii() and word.isdigit() and len(word) < 16
            if want == "N":
                if not is_number:
                    return at
            elif want != word and want != _ALIKE.get(word):
                return at
        return len(pattern)

    def _filter(self) -> tuple[str, object]:
        word = self._next("a filter").lower()
        match word:
            case "in":
                return "collective", self._collective()
            case "over" | "under":
                return word, self._size()
            case "on":
                return "comm", self._next("a communicator").strip('"')
            case "last":
                return "last_us", self._duration()
            case "between":
                low = self._duration()
                if self._next("'and'").lower() != "and":
                    raise self._wrong(self._spelled(-1), "'and'", back=1)
                high = self._duration()
                if high < low:
                    raise self._wrong("an end before its beginning", "it after", back=1)
                return "between_us", (low, high)
            case "rank" | "ranks" | "from":
                return "rank", self._number(_MOST_NUMBER)
            case "top":
                return "top", max(1, self._number(_MOST_TOP))
        near = difflib.get_close_matches(word, _FILTERS, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        want = f"a filter: {', '.join(_FILTERS)}{hint}"
        raise self._wrong(self._spelled(-1), want, back=1)

    def _collective(self) -> str:
        word = self._next("a collective").lower()
        known = collectives.names()
        if word in known or word in ("send", "recv"):
            return word
        near = difflib.get_close_matches(word, known, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise self._wrong(repr(word), f"one of {', '.join(known)}{hint}", back=1)

    def _size(self) -> int:
        word = self._next("a size")
        found = _SIZE.fullmatch(word)
        if found is None or len(word) > 20:
            raise self._wrong(repr(word), "a size such as 4K or 1M", back=1)
        size = round(float(found[1]) * (1 << _POWERS[found[2].lower()]))
        if size > _MOST_NUMBER:
            raise self._wrong(repr(word), "a smaller size", back=1)
        return size

    def _duration(self) -> float:
        """Return microseconds of `5 s`, `5s`, `minute`."""
        word = self._next("a time")
        found = _TIME.fullmatch(word)
        amount, unit = (found[1], found[2].lower()) if found else (None, "")
        if found is not None and amount is not None and not unit:
            unit = self._next("a unit of time").lower()
        if unit not in _UNITS_US or len(word) > 30:
            want = "a time such as 20ms, 3 s, or minute"
            raise self._wrong(self._spelled(-1), want, back=1)
        us = float(amount or 1) * _UNITS_US[unit]
        if us > _MOST_NUMBER:
            raise self._wrong(self._spelled(-1), "a shorter time", back=1)
        return us

    def _number(self, most: int) -> int:
        word = self._next("a number")
        if (
            not (word.isascii() and word.isdigit())
            or len(word) > 16
            or int(word) > most
        ):
            raise self._wrong(repr(word), f"a number to {most}", back=1)
        return int(word)

    def _next(self, want: str) -> str:
        if self._at >= len(self._words):
            raise self._wrong("the end", want)
        self._at += 1
        return self._words[self._at - 1]

    def _spelled(self, offset: int = 0) -> str:
        at = self._at + offset
        return repr(self._words[at][:40]) if at < len(self._words) else "the end"

    def _wrong(self, got: str, want: str, *, back: int = 0) -> CallError:
        """Return what to say of the word that was reached, or one before."""
        return CallError(f"word {self._at + 1 - back}: got {got}; want {want}")


def _spell_time(us: float) -> str:
    """Return a time in the largest unit that leaves it whole."""
    for unit, size in (("s", 1_000_000), ("ms", 1000), ("us", 1)):
        if us and us % size == 0:
            return f"{int(us) // size}{unit}"
    return f"{us!r}us"
