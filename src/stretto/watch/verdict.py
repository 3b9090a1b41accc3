"""What a recording says, in a sentence each: the first that is read of any page.

Who hangs, who held the others up, where that time went, which link is the limit, and
how much communication was exposed. All pages and questions take it from here, so that
two of them never name two culprits.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from stretto.trace import MARKS, Recording
from stretto.watch.diagnose import Diagnosis, diagnose
from stretto.watch.holdup import HoldUp
from stretto.watch.outside import Outside, outside
from stretto.watch.page import spell_ranks, told
from stretto.watch.summary import Summary

_MOST_HANGS = 3
_PLAN = re.compile(r" by \S+ [^:;()]*\([0-9a-f]{12}\)")
"""What a call in words says of its plan: too much for a sentence."""


@dataclass(frozen=True, slots=True)
class Sentence:
    """One thing to know, and what it is about."""

    about: str
    """`hang`, `late`, `time`, `link` or `exposed`."""
    text: str


def verdict(recording: Recording, summary: Summary) -> list[Sentence]:
    """Return what is to be known first, the worst first."""
    recording = recording.without(MARKS)
    return [
        *_hangs(recording),
        *_late(recording, summary.holdup),
        *_links(recording, summary),
        *_exposed(summary),
    ]


def _hangs(recording: Recording) -> Iterator[Sentence]:
    """Tell of calls that do not end as `attach` tells it."""
    found = _diagnosed(recording)
    if not found.findings:
        return
    for finding in found.findings[:_MOST_HANGS]:
        text = "; ".join(line.strip() for line in told(finding)[:2])
        yield Sentence("hang", _PLAN.sub("", text))
    if found.causes:
        rank = found.causes[0]
        text = f"Look first at rank {rank}{_where(recording, rank)}."
        samples = recording.samples[recording.samples["rank"] == rank]
        if len(samples) and int(samples["place"][-1]) >= 0:
            line = recording.places[int(samples["place"][-1])].text
            text = f"{text[:-1]}: it was last seen at {line}"
        yield Sentence("hang", text)


def _diagnosed(recording: Recording) -> Diagnosis:
    """Return the diagnosis as of the last that was heard of any rank."""
    samples = recording.samples["time"]
    return diagnose(recording, int(samples.max()) if len(samples) else 0)


def _where(recording: Recording, rank: int) -> str:
    for info in recording.ranks:
        if info.rank == rank and info.pid:
            return f" ({info.host}, pid {info.pid})"
    return ""


def _late(recording: Recording, found: HoldUp) -> Iterator[Sentence]:
    if not found.meetings:
        return
    once = (
        f"Once rank {found.once_rank} kept them for {time_text(found.once_us)}."
        if found.once_us > max(3 * found.usual_us, 0.2 * found.total_us, 1e3)
        else ""
    )
    if not found.ranks:
        text = "No rank held the others up more than all do now and then."
        yield Sentence("late", f"{text} {once}".strip())
        return
    who = _named(found.ranks)
    yield Sentence(
        "late",
        f"{who} held the others up: {time_text(found.usual_us)} each time (median), in "
        f"{found.late:,} of {found.meetings:,} calls, {time_text(found.total_us)} in "
        f"all, {found.share:.0%} of the time. {once}".strip(),
    )
    told_of = outside(recording, found.ranks[0])
    if told_of is not None:
        yield Sentence("time", _spent(told_of))
    else:
        yield Sentence(
            "time",
            f"What rank {found.ranks[0]} did meanwhile is not known: no samples of it "
            "were recorded (`stretto trace` and STRETTO_TRACE=FOLDER record them).",
        )


def _spent(one: Outside) -> str:
    text = f"Outside of calls rank {one.rank} was {one.doing}"
    if one.place and one.place_share >= 0.2:
        text += f"; for {one.place_share:.0%} of that time at {one.place}"
    return text


def _named(ranks: tuple[int, ...]) -> str:
    said = spell_ranks(ranks)
    return said[0].upper() + said[1:]


def _links(recording: Recording, summary: Summary) -> Iterator[Sentence]:
    rates = [one.rate_gbps for one in summary.links if one.rate_gbps > 0]
    if not rates:
        if summary.holdup.meetings and not len(recording.steps):
            yield Sentence(
                "link",
                "Which link is the limit is not known: the steps inside calls were not "
                "recorded (`stretto trace --steps`).",
            )
        return
    slow = [one for one in summary.links if one.is_slow]
    usual = float(np.median(rates))
    one = summary.links[0]
    text = f"from rank {one.src} to rank {one.dst}, {one.rate_gbps:.3g} GB/s"
    if slow:
        more = f", and {len(slow) - 1} more" if len(slow) > 1 else ""
        yield Sentence(
            "link",
            f"The link that is the limit: {text}{more}; the median pair reaches "
            f"{usual:.3g} GB/s.",
        )
        return
    yield Sentence(
        "link",
        f"No link stands out: the slowest is {text}; the median pair reaches "
        f"{usual:.3g} GB/s.",
    )


def _exposed(summary: Summary) -> Iterator[Sentence]:
    shares = [one.exposed_s / one.span_s for one in summary.shares if one.span_s]
    if not shares:
        return
    length = sum(row.total_s for row in summary.rows)
    waits = sum(row.wait_us * row.timed for row in summary.rows) / 1e6
    text = f"Ranks spent {float(np.median(shares)):.0%} of their time in calls"
    if length and summary.holdup.meetings:
        part = min(1.0, waits / length)
        text += f"; {part:.0%} of that waiting for the last rank to come"
    yield Sentence("exposed", f"{text}.")


def time_text(us: float) -> str:
    """Return a time as people write it.

    >>> time_text(31_500)
    '31.5 ms'
    """
    for unit, scale in (("s", 1e6), ("ms", 1e3)):
        if us >= scale:
            return f"{us / scale:.3g} {unit}"
    return f"{us:.3g} us"
