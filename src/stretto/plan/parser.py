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
"""

from __future__ import annotations

import ast
import re

from stretto.errors import ParseError
from stretto.ir import freeze
from stretto.plan.plan import BufferRun, Plan, Way
from stretto.plan.schedule import Schedule
from stretto.plan.steps import Loc, Move, Signal, Space, Step, Wait

__all__ = ["parse_lanes", "parse_plan"]

_LOC = re.compile(r"(?:r(\d+)\.)?(input|output|stage)\[(\d+)\](!?)\Z")
_MOVE = re.compile(
    r"(?P<name>\w+) (?P<dsts>.*) <- (?P<srcs>.*) @(?P<start>\d+)(?::(?P<stop>\d+))?"
    r"(?P<finish> finish)?(?: #(?P<op>\d+))?\Z"
)
_SYNC = re.compile(r"(signal|wait) r(\d+)\.(\d+) n=(\d+)( relaxed)?\Z")


def parse_plan(text: str) -> Plan:
    """Read a plan back from its text."""
    lines = [(i, t) for i, t in enumerate(text.splitlines(), start=1) if t.strip()]
    if len(lines) < 3 or not lines[0][1].startswith("plan "):
        raise ParseError(f"line 1: got {lines[:1]}, want 'plan NAME collective=...'")
    _, name, *rest = lines[0][1].split()
    fields = dict(word.partition("=")[::2] for word in rest)
    try:
        params = {
            k: ast.literal_eval(v)
            for k, v in fields.items()
            if k not in ("collective", "ranks", "split")
        }
        words = lines[1][1].removeprefix("schedule ")
        hosts: tuple[int, ...] = ()
        if lines[2][1].startswith("hosts "):
            hosts = _parse_hosts(lines.pop(2)[1])
        atoms = tuple(_span(w) for w in lines[2][1].split()[1:])
        ways = [_parse_way(t) for _, t in lines[3:] if t.startswith("way ")]
        inputs, outputs, units, ranks = _parse_ranks(lines[3 + len(ways) :])
        return Plan(
            name=name,
            collective=fields["collective"],
            num_ranks=int(fields["ranks"]),
            split=int(fields["split"]),
            params=freeze(params),
            schedule=Schedule.parse(words.removesuffix(" in_place")),
            in_place=words.endswith(" in_place"),
            atoms=atoms,
            inputs=inputs,
            outputs=outputs,
            stage_units=units,
            ranks=ranks,
            hosts=hosts,
            ways=tuple(ways),
        )
    except (IndexError, KeyError, ValueError, SyntaxError) as e:
        raise ParseError(f"plan {name}: {e}; want what str(plan) gives") from None


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
    return int(start), int(stop)


def _parse_hosts(line: str) -> tuple[int, ...]:
    hosts: list[int] = []
    for word in line.split()[1:]:
        host, _, many = word.partition("x")
        hosts += [int(host)] * int(many)
    return tuple(hosts)


def _parse_way(line: str) -> Way:
    _, op, src, dst, switches = line.split()
    names = () if switches == "-" else tuple(switches.split(">"))
    return Way(int(op[1:]), int(src[1:]), int(dst[1:]), names)


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
            units.append(int(stage))
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
        runs.append(BufferRun(*_span(span), int(atom)))
    return tuple(runs)


def _parse_step(rank: int, line: str, number: int) -> Step:
    if sync := _SYNC.match(line):
        kind, peer, lane, n, relaxed = sync.groups()
        if kind == "wait":
            return Wait(int(peer), int(lane), int(n))
        return Signal(int(peer), int(lane), int(n), release=not relaxed)
    move = _MOVE.match(line)
    if move is None:
        raise ParseError(f"line {number}: got {line!r}, want a step of a plan")
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
        raise ParseError(f"line {number}: got {word!r}, want r1.stage[0]! or input[2]")
    owner, space, pos, packets = match.groups()
    return Loc(
        int(owner) if owner else rank, Space[space.upper()], int(pos), bool(packets)
    )
