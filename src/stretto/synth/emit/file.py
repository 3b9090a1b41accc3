"""A schedule as a readable file in the language, and as the program it builds.

The table in the file holds the moves of representative ranks; a loop over the symmetry
makes all images. What is returned as a program was built by running that very text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any

from stretto.program.ir import Program
from stretto.program.lang import Algorithm
from stretto.synth.emit.collectives import BODIES, Body
from stretto.synth.emit.listing import listed, ways_of
from stretto.synth.emit.order import loops_us, sends_sums_on
from stretto.synth.network.symmetry import Symmetry, trivial
from stretto.synth.schedules.replay import replay
from stretto.synth.schedules.schedule import TimedSchedule

__all__ = ["build", "emit", "identifier", "promised"]


_AND = (" and its images", "")
_AS_GOOD = Fraction(101, 100)


def identifier(text: str) -> str:
    """Return a name that Python accepts."""
    word = "".join(c if c.isalnum() else "_" for c in text.lower())
    return word if word[:1].isalpha() else f"found_{word}"


def emit(schedule: TimedSchedule, name: str, *, facts: Sequence[str] = ()) -> str:
    """Return a Python file that defines the algorithm `collective/name`."""
    demand, symmetry = schedule.demand, schedule.symmetry
    network = demand.network
    assert symmetry is not None  # generators always say how they folded
    n, k = network.num_ranks, demand.split
    if promised(schedule)[0]:
        body = BODIES[demand.collective](schedule, symmetry)
    else:
        ways = ways_of(network, schedule.moves)
        body, symmetry = listed(schedule, ways), trivial(network)
    whole = len(network.members) == n
    members = [] if whole else [f"MEMBERS = {network.members}"]
    options = f"split=K, requires=only_here{', members=MEMBERS' * bool(members)}"
    word = identifier(name)
    function = word if word not in ("ranks", "image") else f"{word}_"
    summary = f"{demand.collective} for {network.name}, found by synthesis."
    lines = [
        f'"""{summary}',
        "",
        *facts,
        '"""',
        "",
        f"from stretto.lang import {body.imports}",
        "",
        f"N, K = {n}, {k}",
        *members,
        *_images(symmetry, n),
        *_tables(body),
        "",
        "",
        "def only_here(n: int) -> str | None:",
        '    """Return why another number of ranks is not served."""',
        '    return None if n == N else f"made for {N} ranks, not {n}"',
        "",
        "",
        f'@algorithm("{demand.collective}/{word}", {options})',
        f"def {function}(ranks: Ranks{body.parameters}) -> None:",
        f'    """Follow the table{_AND[symmetry.order == 1]}."""',
        *(f"    {line}" if line else "" for line in body.lines),
    ]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def promised(schedule: TimedSchedule) -> tuple[bool, Fraction]:
    """Return whether loops write a schedule, and what it takes as it is written.

    A table of all moves keeps the plan, loops may take longer. They write sums of
    inputs alone, which GPUs fetch at once: anyhow where operations cost something,
    else where it is little that links lose.
    """
    us, symmetry = replay(schedule).us, schedule.symmetry
    assert symmetry is not None  # generators always say how they folded
    ways = ways_of(schedule.demand.network, schedule.moves).values()
    if schedule.listed or max(ways) >= 0 or schedule.meetings():
        return False, us
    late = loops_us(schedule, symmetry)
    if not (schedule.loose or schedule.waves or sends_sums_on(schedule)):
        most = us * _AS_GOOD if schedule.demand.network.is_all else late
    else:
        most = late if schedule.loose else us
    if late <= most:
        return True, late
    return False, us


def build(text: str, schedule: TimedSchedule) -> Program:
    """Return the program that an emitted file builds."""
    space: dict[str, Any] = {"__name__": "stretto_synth"}
    exec(compile(text, f"<{schedule.generator}>", "exec"), space)
    found = [v for v in space.values() if isinstance(v, Algorithm)]
    assert len(found) == 1  # emit wrote one
    demand = schedule.demand
    params = {"root": demand.root} if demand.rooted else {}
    return found[0].build(demand.network.num_ranks, **params)


def _images(symmetry: Symmetry, n: int) -> list[str]:
    """Return the lines that say where a symmetry sends a rank."""
    perms = [g[:n] for g in symmetry.nodes]
    if len(perms) == 1:
        return []
    turns = [p[0] for p in perms]
    if perms == [tuple((r + t) % n for r in range(n)) for t in turns]:
        return [
            f"IMAGES = {_range(turns)}",
            "",
            "",
            "def image(rank: int, turn: int) -> int:",
            '    """Return where a rank goes when all move on by `turn`."""',
            "    return (rank + turn) % N",
            "",
            "",
        ]
    for z in (z for z in range(2, n) if n % z == 0):
        want = [
            tuple((r % z + t % z) % z + (r // z + t // z) * z % n for r in range(n))
            for t in turns
        ]
        if want == perms:
            return [
                f"IMAGES = {_range(turns)}",
                "",
                "",
                "def image(rank: int, turn: int) -> int:",
                f'    """Return where a rank goes: boxes of {z} and places move on."""',
                f"    box = rank // {z} + turn // {z}",
                f"    return (rank + turn) % {z} + box * {z} % N",
                "",
                "",
            ]
    return [
        "IMAGES = (  # where each symmetry of the machine sends ranks 0, 1, ...",
        *(f"    {p}," for p in sorted(perms)),
        ")",
        "",
        "",
        "def image(rank: int, moved: tuple[int, ...]) -> int:",
        '    """Return where a symmetry sends a rank."""',
        "    return moved[rank]",
        "",
        "",
    ]


def _range(turns: Iterable[int]) -> str:
    values = sorted(turns)
    step = values[1] - values[0]
    if values == list(range(0, values[-1] + 1, step)):
        return f"range(0, {values[-1] + step}, {step})"
    return str(tuple(values))


def _tables(body: Body) -> list[str]:
    lines: list[str] = []
    for name, legend, entries in body.tables:
        whole = all(isinstance(value, int) for entry in entries for value in entry)
        if whole and len(entries) > _MANY:
            lines += _read_as_text(name, legend, entries)
            continue
        lines.append(f"{name} = (  # {legend}")
        lines += [f"    {entry}," for entry in entries]
        lines.append(")")
    return lines


def _read_as_text(
    name: str, legend: str, entries: Sequence[tuple[object, ...]]
) -> list[str]:
    """Return a long table as text: Python needs ten times as much room for tuples."""
    return [
        f"{name} = [  # {legend}",
        "    tuple(map(int, row.split()))",
        '    for row in """\\',
        *(" ".join(map(str, entry)) for entry in entries),
        '""".splitlines()',
        "]",
    ]


_MANY = 2000
"""Rows of a table that nobody reads."""
