"""Collectives among some of the ranks on GPUs: the others call too, and relay."""

from __future__ import annotations

from typing import Any

import numpy as np
from calls import tensor
from stage import Stage, stage

from stretto.program.collectives import Operator, Shape
from stretto.program.lang import Algorithm, Ranks, algorithm, reduce
from stretto.testing import draw, input_counts, interpret, output_counts

COUNT = 4099
CALLS = (
    ("all_gather", "float32", "sum", ""),
    ("all_gather", "float32", "sum", "pull bulk"),
    ("all_reduce", "bfloat16", "avg", ""),
    ("all_reduce", "float32", "avg", "push bulk blocks=3"),
    ("reduce_scatter", "float16", "avg", "push bulk blocks=2"),
)


def relay(ranks: Ranks) -> Any:
    """Return room for a chunk of every member, on the first rank that is none."""
    first = next(r for r in ranks if r not in ranks.members)
    return first.scratch("room", len(ranks.members))


def all_gather(ranks: Ranks) -> None:
    """Everything is laid down at the relay, and taken from there."""
    room = relay(ranks)
    for r in ranks.members:
        room[r.place] = r.input[:]
    for r in ranks.members:
        r.output[:] = room[:]


def all_reduce(ranks: Ranks) -> None:
    """The relay adds up."""
    room = relay(ranks)
    room[:] = reduce(r.input[:] for r in ranks.members)
    for r in ranks.members:
        r.output[:] = room[:]


def reduce_scatter(ranks: Ranks) -> None:
    """The relay adds up, and hands out."""
    room = relay(ranks)
    room[:] = reduce(r.input[:] for r in ranks.members)
    for r in ranks.members:
        r.output[:] = room[r.place]


FUNCTIONS = {f.__name__: f for f in (all_gather, all_reduce, reduce_scatter)}


@stage
def members(s: Stage) -> None:
    """Each by a relay: bit for bit; what the relay passes is left alone."""
    group = tuple(r for r in range(s.n) if r % 3 != 1)
    if len(group) == s.n:
        return
    for name, dtype, op, words in CALLS:
        chosen = algorithm(f"{name}/relayed", members=group)(FUNCTIONS[name])
        for seed in range(3):
            one(s, chosen, dtype, op, words, seed)


def one(
    s: Stage, chosen: Algorithm, dtype: str, op: str, words: str, seed: int
) -> None:
    """Make one call and compare the bits."""
    program = chosen.build(s.n)
    parts = 1 if chosen.collective == "all_reduce" else len(chosen.members)
    counts = (COUNT,) * parts
    given = [
        draw(np.random.default_rng((seed, q)), c, dtype, Operator(op))
        for q, c in enumerate(input_counts(program, counts))
    ]
    want = interpret(program, given, dtype=dtype, op=op, counts=counts)[s.rank]
    shape = Shape(
        num_ranks=program.num_ranks, split=program.split, params=program.params
    )
    place = shape.place(s.rank)
    mine = given[s.rank] if place is not None else given[chosen.members[0]]
    size = output_counts(program, counts)[s.rank]
    x = tensor(s.torch, s.device, mine, dtype)
    out = tensor(s.torch, s.device, np.full(size, 77, mine.dtype), dtype)
    options: dict[str, Any] = {} if chosen.collective == "all_gather" else {"op": op}
    if place is not None:
        options["out"] = out
    pin = (chosen, words) if words else chosen
    got = getattr(s.comm, chosen.collective)(x, algorithm=pin, **options)
    s.sync()
    told = f"{chosen.name} {dtype} {op} {words} seed={seed}"
    if place is None:
        kept = s.bits(x).tobytes() == np.ascontiguousarray(mine).tobytes()
        s.expect(got is None and kept, f"{told}: a relay got {got}, kept its x: {kept}")
    else:
        s.expect(s.bits(got).tobytes() == want.tobytes(), f"{told}: other bits")
