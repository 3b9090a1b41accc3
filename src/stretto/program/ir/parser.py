"""Read programs from text: what is printed parses back to the same program.

program all_reduce/two_shot collective=all_reduce ranks=2 split=1
  r0.output[0] = r0.input[0] + r1.input[0]
  @gather
  r1.output[0] = r0.output[0]

What means nothing, and is not printed: blanks at the ends of lines and between words of
the first, empty lines, `# comments`, the order of the first line's words and of scratch
buffers, `split=1`, a part's name that no operation follows or that was said before. And
`[0:1]` is printed `[0]`, `a = a + b` as `a += b`. Anything else that would be printed
in another way (`r01`, a word given twice) is refused.
"""

from __future__ import annotations

import re

from stretto.errors import ParseError
from stretto.program.ir.program import Op, Program, Ref, Via, freeze
from stretto.program.ir.reading import WHOLE, literal

_HEADER = {"collective", "ranks", "split"}
_N = rf"({WHOLE})"
_REF = re.compile(rf"r{_N}\.([A-Za-z_]\w*)\[{_N}(?::{_N})?\]\Z", re.ASCII)
_SCRATCH = re.compile(rf"scratch ([A-Za-z_]\w*)\[{_N}\]\Z", re.ASCII)


def parse_program(text: str, source: str = "") -> Program:
    """Read a program back from its text; `source` is the file it is from, if any."""
    lines = text.splitlines()
    if lines and lines[0].startswith("plan "):
        raise ParseError(
            "line 1: this is the text of a plan, want that of a program; in Python "
            "stretto.plan.parse_plan reads it and stretto.verify.verify_plan proves it"
        )
    if not lines or not re.match(r"program \S", lines[0]):
        raise ParseError(f"line 1: got {lines[:1]}, want 'program NAME collective=...'")
    name, fields, params = _parse_header(lines[0])
    scratch: dict[str, int] = {}
    ops: list[Op] = []
    places: list[str] = []
    phase = ""
    for number, raw in enumerate(lines[1:], start=2):
        line = raw.split("#", 1)[0].strip()
        if not line:
            continue
        if line.startswith("@"):
            phase = line[1:]
        elif line.startswith("scratch "):
            match = _SCRATCH.match(line)
            if match is None:
                raise ParseError(f"line {number}: got {line!r}, want 'scratch NAME[N]'")
            if match[1] in scratch:
                raise ParseError(f"line {number}: scratch {match[1]} is given twice")
            scratch[match[1]] = int(match[2])
        else:
            op = _parse_op(line, number, phase)
            ops.append(op._replace(where=len(places)))
            places.append(f"{source}:{number}" if source else f"line {number}")
    return Program(
        name=name,
        collective=fields["collective"],
        num_ranks=_integer(fields, "ranks"),
        split=_integer(fields, "split"),
        params=freeze(params),
        scratch=scratch,
        ops=tuple(ops),
        places=tuple(places),
        source=source,
    )


def _parse_header(line: str) -> tuple[str, dict[str, str], dict[str, object]]:
    _, name, *rest = line.split()
    fields: dict[str, str] = {}
    params: dict[str, object] = {}
    for word in rest:
        key, eq, value = word.partition("=")
        if not eq:
            raise ParseError(f"line 1: got {word[:80]!r}, want key=value")
        if key in fields or key in params:
            raise ParseError(f"line 1: {key[:80]} is given twice")
        if key in _HEADER:
            fields[key] = value
            continue
        try:
            params[key] = literal(value)
        except ValueError as e:
            raise ParseError(f"line 1: {key[:80]}: {e}") from None
    fields.setdefault("split", "1")
    if missing := _HEADER - fields.keys():
        raise ParseError(f"line 1: missing {', '.join(sorted(missing))}")
    return name, fields, params


def _integer(fields: dict[str, str], key: str) -> int:
    if not re.fullmatch(_N, fields[key]):
        raise ParseError(f"line 1: {key}={fields[key]!r}, want a whole number")
    return int(fields[key])


def _parse_op(line: str, number: int, phase: str) -> Op:
    left, adds, right = line.partition(" += ")
    if not adds:
        left, equals, right = line.partition(" = ")
        if not equals:
            raise ParseError(f"line {number}: got {line!r}, want 'REF = REF + ...'")
    dst = parse_ref(left, number)
    parts = [part.partition(" via ") for part in right.split(" + ")]
    srcs = tuple(parse_ref(ref, number) for ref, _, _ in parts)
    ways = tuple(_parse_via(way, number) if given else None for _, given, way in parts)
    if adds:
        srcs, ways = (dst, *srcs), (None, *ways)
    return Op(dst, srcs, phase, via=ways if any(w is not None for w in ways) else ())


def _parse_via(text: str, number: int) -> Via:
    """Read the switches of a way, `ib0>spine`; `-` is a way without any."""
    names = text.strip().split(">")
    if names == ["-"]:
        return ()
    if not all(names) or any(c.isspace() for c in text.strip()):
        raise ParseError(f"line {number}: got via {text!r}, want SWITCH>SWITCH or -")
    return tuple(names)


def parse_ref(text: str, number: int) -> Ref:
    """Read one reference such as `r0.output[1:3]`."""
    match = _REF.match(text.strip())
    if match is None:
        raise ParseError(f"line {number}: got {text!r}, want rRANK.BUFFER[A] or [A:B]")
    rank, buffer, start, stop = match.groups()
    first = int(start)
    return Ref(int(rank), buffer, first, int(stop) if stop else first + 1)
