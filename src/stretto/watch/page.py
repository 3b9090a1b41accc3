"""A diagnosis as one page of text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stretto.trace import Recording
from stretto.watch.diagnose import (
    LEFT,
    MISMATCH,
    MISSING,
    STUCK,
    TRANSFER,
    Chain,
    Diagnosis,
    Finding,
    Involved,
)

_MOST_LINES = 12
_MOST_RANKS = 16
_HOW = {
    "absent": "has not entered",
    "elsewhere": "entered something else",
    "stuck": "waits",
    "gone": "has left",
}


def page(diagnosis: Diagnosis, recording: Recording) -> str:
    """Return the page: what is wrong, who is to be looked at, and why."""
    return "\n".join(_lines(diagnosis, recording))


def _lines(diagnosis: Diagnosis, recording: Recording) -> Iterator[str]:
    known = spell_ranks(diagnosis.known)
    if not diagnosis.findings:
        yield f"stretto trace: nobody waits ({known} looked at)"
        return
    yield f"stretto trace: {len(diagnosis.findings)} found, {known} looked at"
    if diagnosis.causes:
        where = {
            info.rank: f" ({info.host}, pid {info.pid})" for info in recording.ranks
        }
        first = diagnosis.causes[:_MOST_LINES]
        named = ", ".join(f"rank {rank}{where.get(rank, '')}" for rank in first)
        yield f"look first at: {named}"
    for finding in diagnosis.findings:
        yield ""
        yield from _finding(finding)


def _finding(one: Finding) -> Iterator[str]:
    what = f"{one.comm}, call {one.seq}: {one.call}"
    share = f"{one.inside} of {one.size} ranks"
    match one.kind:
        case k if k == MISMATCH:
            yield f"{what}: ranks called different things; {share} made this one"
        case k if k == MISSING:
            yield f"{what}: {share} are in it and wait for the others"
        case k if k == TRANSFER:
            yield f"{what}: one end is there, and the other is not"
        case k if k == LEFT:
            yield f"{what}: {share} are still in it, and the others have left"
        case k if k == STUCK:
            yield f"{what}: all {one.size} ranks are in it, and it does not go on"
    for member in one.odd[:_MOST_LINES]:
        yield f"  {_member(member)}"
    if len(one.odd) > _MOST_LINES:
        rest = spell_ranks([m.rank for m in one.odd[_MOST_LINES:]])
        yield f"  and {rest}"
    if one.unknown:
        yield f"  {spell_ranks(one.unknown)}: not on this host, or not recorded"
    for chain in one.chains[:_MOST_LINES]:
        yield f"  because: {_chain(chain)}"


def told(one: Finding) -> list[str]:
    """Return what the page says of one finding, line by line."""
    return list(_finding(one))


def _member(one: Involved) -> str:
    said = f"rank {one.rank} {_HOW[one.how]}"
    if one.how == "stuck":
        said += f" for {spell_ranks(one.waits_for)}" if one.waits_for else ""
        said += f" in {one.step}" if one.step else ""
    elif one.how == "elsewhere":
        said += f": {one.call}"
    if one.for_s:
        said += f", for {one.for_s:.1f} s"
    return f"{said}; {one.doing}" if one.doing else said


def _chain(one: Chain) -> str:
    links = [f"rank {rank} ({where})" for rank, where, _ in one.links]
    if len(links) > _MOST_LINES:
        links = [*links[: _MOST_LINES - 1], "..."]
    return f"{' <- '.join([*links, f'rank {one.cause}'])}: {one.why}"


def spell_ranks(ranks: Sequence[int]) -> str:
    """Return `rank 1` or `ranks 0-3, 7`.

    >>> spell_ranks([0, 1, 2, 7])
    'ranks 0-2, 7'
    """
    found = sorted(set(ranks))
    runs: list[list[int]] = []
    for rank in found:
        if runs and runs[-1][-1] == rank - 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    named = [str(r[0]) if len(r) == 1 else f"{r[0]}-{r[-1]}" for r in runs]
    more = f" and {len(named) - _MOST_RANKS} more" if len(named) > _MOST_RANKS else ""
    text = ", ".join(named[:_MOST_RANKS]) or "none"
    return f"rank{'s' * (len(found) != 1)} {text}{more}"
