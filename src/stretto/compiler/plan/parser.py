"""Read plans from text: what is printed parses back to the same plan.

    plan all_reduce/two_shot collective=all_reduce ranks=2 split=1
    schedule push packets staged
    atoms 0:1 1:2
    rank 0 input 0:2@0 output 0:2@0 stage 2
      lane 0
        put_packets r1.stage[0]! <- input[1] @1
        reduce_packets output[0], r1.stage[1]! <- input[0], stage[0]! @0 finish
        read_packets output[1] <- stage[1]! @1

Where ranks are on several hosts, `hosts 0x2 1x2` after the schedule says who is where:
two ranks on the first host, then two on the second.

`way #3 r0 r1 leaf>spine`, after the atoms, says which switches operation 3 passes from
rank 0 to 1. `!` marks packets, `@1` or `@0:4` the atoms. Where an operation of the
program is known, `#3` names it.

What means nothing, and is not printed: blanks, empty lines, the order of words in the
first line and in the second (`Schedule.parse` says what else of that). Anything else
that would be printed in another way (`r01`, a lane's number that is not its place, a
word given twice) is refused; no number is 10^9 or more.
"""

from __future__ import annotations

import re
from itertools import zip_longest

from stretto.compiler.plan.plan import BufferRun, Plan, Way
from stretto.compiler.plan.schedule import Schedule
from stretto.compiler.plan.steps import Loc, Move, Signal, Space, Step, Wait
from stretto.errors import ParseError, ProgramError, StrettoError
from stretto.program.ir import WHOLE, freeze, literal, whole

_LOC = re.compile(rf"(?:r({WHOLE})\.)?(input|output|stage)\[({WHOLE})\](!?)\Z")
_MOVE = re.compile(
    rf"\w+ (?P<dsts>.*) <- (?P<srcs>.*) @(?P<start>{WHOLE})(?::(?P<stop>{WHOLE}))?"
    rf"(?P<finish> finish)?(?: #(?P<op>{WHOLE}))?\Z"
)
_SYNC = re.compile(rf"(signal|wait) r({WHOLE})\.({WHOLE}) n=({WHOLE})( relaxed)?\Z")


def parse_plan(text: str) -> Plan:
    """Read a plan back from its text."""
    lines = [(i, t) for i, t in enumerate(text.splitlines(), start=1) if t.strip()]
    if len(lines) < 3 or not re.match(r"plan \S", lines[0][1]):
        got = str([t[:80] for _, t in lines[:1]])
        raise ParseError(f"line 1: got {got}, want 'plan NAME collective=...'")
    name = lines[0][1].split()[1]
    try:
        plan = _parse(lines)
    except ProgramError:
        raise
    except (IndexError, KeyError, ValueError, StrettoError) as e:
        raise ParseError(f"plan {name[:80]}: {e}; want what str(plan) gives") from None
    _check_same(plan, lines)
    return plan


def _parse(lines: list[tuple[int, str]]) -> Plan:
    _, name, *rest = lines[0][1].split()
    fields = _fields(rest)
    num_ranks = whole(fields.pop("ranks"))
    collective, split = fields.pop("collective"), whole(fields.pop("split"))
    schedule, *words = lines[1][1].split()
    if schedule != "schedule":
        raise ValueError(f"line {lines[1][0]}: got {schedule[:80]!r}, want 'schedule'")
    in_place = words[-1:] == ["in_place"]
    hosts: tuple[int, ...] = ()
    start = 2
    if lines[start][1].startswith("hosts "):
        hosts = _parse_hosts(lines[start][1], num_ranks)
        start += 1
    atoms = tuple(_span(w) for w in lines[start][1].split()[1:])
    ways = [_parse_way(t) for _, t in lines[start + 1 :] if t.startswith("way ")]
    inputs, outputs, units, ranks = _parse_ranks(lines[start + 1 + len(ways) :])
    if len(ranks) != num_ranks:
        raise ValueError(f"ranks={num_ranks}, and {len(ranks)} of them are there")
    return Plan(
        name=name,
        collective=collective,
        num_ranks=num_ranks,
        split=split,
        params=freeze({key: literal(value) for key, value in fields.items()}),
        schedule=Schedule.parse(" ".join(words[: len(words) - in_place])),
        in_place=in_place,
        atoms=atoms,
        inputs=inputs,
        outputs=outputs,
        stage_units=units,
        ranks=ranks,
        hosts=hosts,
        ways=tuple(ways),
    )


def _fields(words: list[str]) -> dict[str, str]:
    fields: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or key in fields:
            raise ValueError(f"line 1: got {word[:80]!r}, want each key=value once")
        fields[key] = value
    return fields


def _check_same(plan: Plan, lines: list[tuple[int, str]]) -> None:
    """Refuse a text that says something other than what was read of it."""
    given = lines[2:]
    printed = str(plan).splitlines()[2:]
    for line, want in zip_longest(given, printed):
        number, got = line or (lines[-1][0] + 1, "")
        if got.split() != (want or "").split():
            raise ParseError(
                f"line {number}: got {got.strip()[:80]!r}, want {(want or '')[:80]!r}"
            )


def parse_lanes(rank: int, text: str) -> tuple[tuple[Step, ...], ...]:
    """Read the lanes of one rank back from their lines, as `spell_lanes` gives them."""
    lanes: list[list[Step]] = []
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip()
        if line.startswith("lane "):
            lanes.append([])
        elif not lanes:
            raise ParseError(f"line {number}: got {line!r}, want 'lane 0' before it")
        else:
            lanes[-1].append(_parse_step(rank, line, number))
    return tuple(map(tuple, lanes))


def _span(word: str) -> tuple[int, int]:
    start, _, stop = word.partition(":")
    return whole(start), whole(stop)


def _parse_hosts(line: str, num_ranks: int) -> tuple[int, ...]:
    hosts: list[int] = []
    for word in line.split()[1:]:
        host, _, many = word.partition("x")
        count = whole(many)
        if len(hosts) + count > num_ranks:
            raise ValueError(f"hosts {word}: more than the {num_ranks} ranks")
        hosts += [whole(host)] * count
    return tuple(hosts)


def _parse_way(line: str) -> Way:
    _, op, src, dst, switches = line.split()
    names = () if switches == "-" else tuple(switches.split(">"))
    return Way(whole(op[1:]), whole(src[1:]), whole(dst[1:]), names)


_Runs = tuple[tuple[BufferRun, ...], ...]
_Lanes = tuple[tuple[tuple[Step, ...], ...], ...]


def _parse_ranks(
    lines: list[tuple[int, str]],
) -> tuple[_Runs, _Runs, tuple[int, ...], _Lanes]:
    inputs: list[tuple[BufferRun, ...]] = []
    outputs: list[tuple[BufferRun, ...]] = []
    units: list[int] = []
    ranks: list[list[list[Step]]] = []
    for number, raw in lines:
        line = raw.strip()
        if line.startswith("rank "):
            head, _, stage = line.partition(" stage ")
            before, _, after = head.partition(" output")
            inputs.append(_parse_runs(before.split()[3:]))
            outputs.append(_parse_runs(after.split()))
            units.append(whole(stage))
            ranks.append([])
        elif line.startswith("lane "):
            ranks[-1].append([])
        else:
            ranks[-1][-1].append(_parse_step(len(ranks) - 1, line, number))
    lanes = tuple(tuple(tuple(steps) for steps in lanes) for lanes in ranks)
    return tuple(inputs), tuple(outputs), tuple(units), lanes


def _parse_runs(words: list[str]) -> tuple[BufferRun, ...]:
    runs = []
    for word in words:
        span, _, atom = word.partition("@")
        runs.append(BufferRun(*_span(span), whole(atom)))
    return tuple(runs)


def _parse_step(rank: int, line: str, number: int) -> Step:
    if sync := _SYNC.match(line):
        kind, peer, lane, n, relaxed = sync.groups()
        if kind == "wait":
            return Wait(int(peer), int(lane), int(n))
        return Signal(int(peer), int(lane), int(n), release=not relaxed)
    move = _MOVE.match(line)
    if move is None:
        raise ParseError(f"line {number}: got {line[:80]!r}, want a step of a plan")
    start = int(move["start"])
    return Move(
        tuple(_parse_loc(rank, w, number) for w in move["dsts"].split(", ")),
        tuple(_parse_loc(rank, w, number) for w in move["srcs"].split(", ")),
        start,
        int(move["stop"]) if move["stop"] else start + 1,
        finish=bool(move["finish"]),
        op=int(move["op"]) if move["op"] else -1,
    )


def _parse_loc(rank: int, word: str, number: int) -> Loc:
    match = _LOC.match(word)
    if match is None:
        raise ParseError(
            f"line {number}: got {word[:80]!r}, want r1.stage[0]! or input[2]"
        )
    owner, space, pos, packets = match.groups()
    return Loc(
        int(owner) if owner else rank, Space[space.upper()], int(pos), bool(packets)
    )
