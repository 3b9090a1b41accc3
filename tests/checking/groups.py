"""Programs among some of the ranks, made of ordinary ones: to hold properties against.

`among` numbers the ranks of a program anew, within more ranks. `relayed` lets the ranks
outside do what crosses ranks: they fetch, add up, and hand on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from tests.checking.cases import programs

from stretto.errors import CallError
from stretto.program.ir import Op, Program, Ref, freeze

__all__ = ["among", "group_programs", "relayed"]

_ROOM = "relay"


def group_programs(num_ranks: int, only: str = "") -> Iterator[tuple[str, Program]]:
    """Yield (label, program) for shipped algorithms among some of so many ranks.

    Each comes twice: with idle ranks outside, and with all that crosses ranks relayed.
    """
    members = tuple(r for r in range(num_ranks) if r % 3 != 1)
    if len(members) == num_ranks:
        return
    spelt = str(members).replace(" ", "")
    for label, program in programs(len(members), only):
        if "pairs" not in program.params:
            group = among(program, members, num_ranks)
            yield f"{label} among={spelt} of={num_ranks}", group
            yield f"{label} among={spelt} of={num_ranks} relayed", relayed(group)


def among(program: Program, members: Sequence[int], num_ranks: int) -> Program:
    """Return a program of all ranks as one of `members`, which are as many."""
    ranks = tuple(members)
    if len(ranks) != program.num_ranks or "pairs" in program.params:
        raise CallError(
            f"{program.name} among {ranks}: want {program.num_ranks} ranks, no pairs"
        )
    params = {**program.params, "members": ranks}
    if "root" in params:
        params["root"] = ranks[int(str(params["root"]))]

    def moved(ref: Ref) -> Ref:
        return ref._replace(rank=ranks[ref.rank])

    ops = [
        op._replace(dst=moved(op.dst), srcs=tuple(map(moved, op.srcs)))
        for op in program.ops
    ]
    return replace(program, num_ranks=num_ranks, params=freeze(params), ops=tuple(ops))


def relayed(program: Program) -> Program:
    """Return the program with all that crosses ranks done by those that relay."""
    members = program.params["members"]
    assert isinstance(members, tuple)  # `among` made it
    relays = [r for r in range(program.num_ranks) if r not in members]
    if not relays:
        raise CallError(f"{program.name}: everybody is a member; want ranks outside")
    ops = list(_through(program, relays))
    room = sum(_width(op.dst) for op in ops if op.dst.buffer == _ROOM)
    scratch = {**program.scratch, _ROOM: room} if room else program.scratch
    return replace(program, scratch=scratch, ops=tuple(ops))


def _through(program: Program, relays: Sequence[int]) -> Iterator[Op]:
    at = 0
    for number, op in enumerate(program.ops):
        if all(src.rank == op.dst.rank for src in op.srcs):
            yield op
            continue
        stop = at + _width(op.dst)
        slot = Ref(relays[number % len(relays)], _ROOM, at, stop)
        yield op._replace(dst=slot)
        yield op._replace(srcs=(slot,))
        at = stop


def _width(ref: Ref) -> int:
    return ref.stop - ref.start
