"""A program beside its plan and its kernel: the same step in all three."""

from __future__ import annotations

from typing import Any

from stretto.errors import CallError
from stretto.program import algorithms
from stretto.studio.analysis.scene import Args, Scene, number
from stretto.studio.analysis.side_by_side import packed, side_by_side
from stretto.studio.inputs.loading import LoadedInputs
from stretto.trace import CallKind

TITLE = "Program"
ORDER = 7
_MOST_RANKS = 64
_MOST_CHOICES = 64


def offered(loaded: LoadedInputs) -> bool:
    """Return whether there is a program, or calls that name their algorithm."""
    return loaded.program is not None or bool(_choices(loaded))


def data(scene: Scene, args: Args) -> dict[str, Any]:
    """Return the three texts of the chosen program, and how their lines are tied."""
    loaded = scene.loaded
    choices = _choices(loaded)
    names = [_spelled(kind, n) for kind, n in choices]
    given = loaded.given
    if loaded.program is not None:
        names.insert(0, f"{loaded.program.summary}, given")
    chosen = number(args, "which", 0, most=max(0, len(names) - 1))
    if not names:
        raise CallError("no program was given, and no call names its algorithm")
    schedule, dtype = given.schedule, given.dtype
    if loaded.program is not None and chosen == 0:
        program = loaded.program
    else:
        kind, n = choices[chosen - (loaded.program is not None)]
        program = algorithms.get(kind.algorithm).build(n)
        schedule, dtype = kind.schedule, kind.dtype or dtype
    rank = number(args, "rank", 0, most=program.num_ranks - 1)
    found = side_by_side(
        program, schedule=schedule, rank=rank, dtype=dtype, given=given.source
    )
    return {
        "choices": names,
        "which": chosen,
        "rank": rank,
        "num_ranks": program.num_ranks,
        "title": program.summary,
        "schedule": schedule,
        "author_name": found.author_name,
        "author": packed(found.author),
        "plan": packed(found.plan),
        "kernel": packed(found.kernel),
        "notes": list(found.notes),
    }


def _choices(loaded: LoadedInputs) -> list[tuple[CallKind, int]]:
    """Return the kinds of calls whose algorithm is in the catalogue, and small."""
    if loaded.recording is None:
        return []
    known = set(algorithms.names())
    sizes = {len(comm.members) for comm in loaded.recording.comms}
    found = {
        (kind.algorithm, kind.schedule, n): (kind, n)
        for kind in loaded.recording.kinds
        for n in sorted(sizes)
        if kind.algorithm in known
        and 1 < n <= _MOST_RANKS
        and algorithms.get(kind.algorithm).refuses(n) is None
    }
    return list(found.values())[:_MOST_CHOICES]


def _spelled(kind: CallKind, num_ranks: int) -> str:
    return f"{kind.algorithm} {kind.schedule} for {num_ranks} ranks"
