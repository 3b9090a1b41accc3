"""Other ways to ask: words that mean what the language has one word for.

A question that the grammar does not know is looked through for words of a few meanings,
in English and German, and for what the grammar's filters are called. What they amount
to is written as a question of the language, which is shown beside its answer. A number
that says nothing here is never passed over: then the question is refused, with the
nearest that would do.
"""

from __future__ import annotations

import difflib
import re
import unicodedata

from stretto.program import collectives

_MEANINGS = {
    "hang": "hang hangs hanging hung stuck deadlock deadlocked blocked frozen stalled "
    "haengt hangt haengen hangen steht fest",
    "link": "link links connection connections pair pairs wire wires cable network "
    "nvlink path verbindung verbindungen leitung leitungen netz netzwerk",
    "busy": "busy busiest hot hottest loaded used saturated congested full "
    "ausgelastet heiss voll belastet",
    "limit": "limit limits limiting bottleneck bottlenecks engpass flaschenhals",
    "traffic": "traffic bytes moved moves sent sends send volume data verkehr daten "
    "gesendet schickt transferred transfers",
    "slow": "slow slowest slower slowly late later latest lag lags lagging straggler "
    "stragglers behind delay delays delayed hold holds holding held worst langsam "
    "langsame langsamer langsamste langsamsten spat spaet spater spaeter bremst "
    "verzogert verzoegert",
    "rank": "rank ranks who whom worker workers process processes gpu gpus wer welcher "
    "rang prozess straggler stragglers everyone everybody others",
    "collective": "collective collectives call calls operation operations op ops step "
    "steps schritt schritte aufruf aufrufe operationen kollektive",
    "time": "long took take takes time times duration durations latency latencies p50 "
    "p99 median fast quick speed bandwidth busbw lange dauert dauer dauern schnell "
    "bandbreite zeit",
    "why": "why reason reasons cause causes explain warum wieso weshalb grund",
    "doing": "doing does do did macht tut working works",
    "whole": "wrong summary summarise summarize overview problem problems happened "
    "happening los falsch zusammenfassung verdict exposed overlap overlapped",
}
_WORDS = {meaning: frozenset(words.split()) for meaning, words in _MEANINGS.items()}
_COLLECTIVE = re.compile(
    "|".join(
        rf"\b{name.replace('_', '[-_ ]?')}s?\b"
        for name in sorted(
            (*collectives.names(), "send", "recv"), key=len, reverse=True
        )
        if "_" in name or name in ("broadcast", "barrier")
    )
)
_SIZE = r"([0-9]+(?:\.[0-9]+)?)\s?([kmgt]?)(?:i?b(?:ytes)?)?\b"
_OVER = "over|above|larger than|more than|bigger than|uber|ueber"
_UNDER = "under|below|smaller than|less than|unter"
_UNIT = "us|ms|s|sec|seconds?|min|minutes?|h|hours?|sekunden?|minuten?"
_FILTERS = (
    (rf"\b(?:{_OVER}) {_SIZE}", "over {}{}"),
    (rf"\b(?:{_UNDER}) {_SIZE}", "under {}{}"),
    (rf"\b(?:last|past|letzten?) ([0-9]*) ?({_UNIT})\b", "last {}{}"),
    (r"\b(?:top|first|besten) ([0-9]+)\b", "top {}"),
)
_NUMBERED = {
    "rank": re.compile(r"\b(?:rank|worker|process|gpu|rang|prozess) ?#?([0-9]+)\b"),
    "step": re.compile(
        r"\b(?:step|call|collective|iteration|schritt|aufruf) ?#?([0-9]+)\b"
    ),
}
_UNITS = {"sekunde": "s", "sekunden": "s", "minute": "min", "minuten": "min"}


def rewritten(text: str) -> str:
    """Return a question of the language that says the same; "": there is none."""
    plain = unicodedata.normalize("NFKD", text.casefold())
    rest = f" {''.join(c for c in plain if not unicodedata.combining(c))} "
    filters: list[str] = []
    for pattern, written in _FILTERS:
        if found := re.search(pattern, rest):
            parts = [_UNITS.get(part or "", part or "") for part in found.groups()]
            filters.append(written.format(*parts))
            rest = rest[: found.start()] + " " + rest[found.end() :]
    name = _COLLECTIVE.search(rest)
    if name:
        spelled = re.sub(r"[-_ ]", "", name[0])
        known = {one.replace("_", ""): one for one in collectives.names()}
        filters.insert(0, f"in {known.get(spelled) or known[spelled.rstrip('s')]}")
        rest = rest.replace(name[0], " collective ")
    numbers = {}
    for what, shape in _NUMBERED.items():
        if numbered := shape.search(rest):
            numbers[what] = numbered[1]
            rest = rest[: numbered.start()] + f" {what} " + rest[numbered.end() :]
    if re.search("[0-9]", rest.replace("p50", "").replace("p99", "")):
        return ""
    words = set(re.findall(r"[a-z0-9]+", rest))
    meant = {meaning for meaning, some in _WORDS.items() if words & some}
    subject = _subject(meant, numbers, bool(name))
    return " ".join([subject, *filters]) if subject else ""


def _subject(meant: set[str], numbers: dict[str, str], is_named: bool) -> str:
    """Return what is asked by the meanings of its words; the surest first."""
    rank, step = numbers.get("rank"), numbers.get("step")
    if "hang" in meant:
        return "hangs"
    if step is not None:
        return f"why is step {step} slow" if meant & {"why", "slow", "time"} else ""
    if "link" in meant:
        wide = meant & {"busy", "traffic"} and "slow" not in meant
        of_rank = f" rank {rank}" if rank is not None else ""
        return ("busiest links" if wide else "slowest links") + of_rank
    if rank is not None:
        if meant & {"why", "slow"}:
            return f"why is rank {rank} late"
        if "traffic" in meant:
            return f"traffic rank {rank}"
        return f"what is rank {rank} doing" if "doing" in meant else ""
    if "traffic" in meant:
        return "traffic"
    if "slow" in meant and "why" not in meant:
        if "rank" in meant:
            return "late ranks"
        return "slowest collectives" if "collective" in meant else ""
    if "time" in meant and (is_named or "why" not in meant):
        return "times"
    if meant & {"why", "whole", "limit"}:
        return "summary"
    return "slowest collectives" if "busy" in meant and is_named else ""


def nearest(text: str, said: tuple[str, ...]) -> list[str]:
    """Return the three questions that are most like a text."""

    def likeness(one: str) -> float:
        return difflib.SequenceMatcher(None, text.lower(), one).ratio()

    return sorted(said, key=likeness, reverse=True)[:3]
