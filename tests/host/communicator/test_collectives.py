"""Every collective on real processes, against the oracle, however it is called."""

import numpy as np
import pytest
from tests.nightly import at_night

import stretto
from stretto.program import collectives
from stretto.program.collectives import Operator, Shape, storage
from stretto.testing import draw, expected, largest_error, pairings, tolerance

pytestmark = [pytest.mark.host, pytest.mark.timeout(120)]

VERBS = (
    "all_reduce",
    "reduce",
    "broadcast",
    "all_gather",
    "gather",
    "reduce_scatter",
    "scatter",
    "all_to_all",
    "permute",
)
COUNTS = (0, 1, 2, 7, 257)
STYLES = ("new", "out", "in place", "strided", "unaligned", "registered")


class Checks:
    """Runs calls on one rank and collects what is wrong."""

    def __init__(self, comm, seed=0):
        self.comm, self.rng, self.wrong = comm, np.random.default_rng(seed), []
        self.rooms = [comm.empty(1 << 16, "uint8") for _ in range(2)]

    def case(self, verb, count, dtype, op, style, root=0):
        """Make one call with equal parts; note when it is not what the oracle says."""
        n, rank = self.comm.num_ranks, self.comm.rank
        kind = collectives.get(verb)
        params = {"root": root} if kind.rooted else {}
        if verb == "permute":
            params["pairs"] = tuple((r, (r + 1) % n) for r in range(n - 1))
        shape = Shape(num_ranks=n, params=params)
        parts = kind.num_parts(shape)
        divided = verb in ("reduce_scatter", "scatter", "all_to_all")
        mine = count * n if divided else count
        whole = [draw(self.rng, mine, dtype, op) for _ in range(n)]
        inputs = [
            part if kind.input_runs(shape, q) else part[:0]
            for q, part in enumerate(whole)
        ]
        want = expected(
            verb, shape, inputs, dtype=dtype, op=op, counts=(count,) * parts
        )[rank]
        size = count if verb == "permute" else want.size
        got = self.call(verb, whole[rank], dtype, op, style, params, size)
        told = f"{verb} {count} {dtype} {op.value} {style} root={root} on {n}"
        if verb == "permute" and not kind.output_runs(shape, rank):
            want = np.zeros(count, storage(dtype))
        if not want.size:
            if got is not None and got.size:
                self.wrong.append(f"rank {rank}: {told}: got {got}")
            return
        error = largest_error(np.ascontiguousarray(got).ravel(), want, dtype)
        if not error <= tolerance(dtype, n):
            self.wrong.append(f"rank {rank}: {told}: error {error}")

    def call(self, verb, x, dtype, op, style, params, size):
        """Call a verb in some style; return its result."""
        comm, rank = self.comm, self.comm.rank
        options = dict(params) | {"dtype": dtype}
        if collectives.get(verb).reduces:
            options["op"] = op
        x = self.array(x, style, 0)
        if style == "in place":
            return self.in_place(verb, x, dtype, options, size)
        if style != "new" or (verb == "scatter" and rank != params["root"]):
            options["out"] = self.array(np.zeros(size, x.dtype), style, 1)
        lonely = verb in ("scatter", "broadcast") and rank != params["root"]
        if verb == "broadcast" and lonely and "out" in options:
            return comm.broadcast(None, **options)
        return getattr(comm, verb)(x, **options)

    def array(self, values, style, room):
        """Return the values in an array of a style."""
        if style == "strided":
            holder = np.zeros(2 * values.size, values.dtype)[::2]
        elif style == "unaligned":
            raw = np.zeros(values.nbytes + 1, np.uint8)[1:]
            holder = raw.view(values.dtype)
        elif style == "registered":
            holder = self.rooms[room][: values.nbytes].view(values.dtype)
        else:
            return values
        holder[...] = values
        return holder

    def in_place(self, verb, x, dtype, options, size):
        """Call with the output where it may lie in the input, or the other way."""
        comm, rank, n = self.comm, self.comm.rank, self.comm.num_ranks
        root = options.get("root")
        if verb in ("all_gather", "gather"):
            if root not in (None, rank):
                return comm.gather(x, **options)
            whole = np.zeros((n, x.size), x.dtype)
            whole[rank] = x
            return getattr(comm, verb)(whole[rank], out=whole, **options)
        if verb in ("reduce_scatter", "scatter"):
            if root not in (None, rank):
                return comm.scatter(None, out=np.zeros(size, x.dtype), **options)
            part = x.reshape(n, -1)[rank]
            return getattr(comm, verb)(x, out=part, **options)
        if verb in ("broadcast", "reduce"):
            return getattr(comm, verb)(x, **options)
        return getattr(comm, verb)(x, out=x, **options)


def all_styles(comm):
    """Every verb, count and style, for one type."""
    checks = Checks(comm)
    for verb in VERBS:
        for count in COUNTS:
            for style in STYLES:
                root = (count + 1) % comm.num_ranks
                checks.case(verb, count, "float32", Operator.SUM, style, root)
    return checks.wrong


def all_types(comm):
    """Every type with some operator, and some types with every operator."""
    checks, seen = Checks(comm), set()
    for dtype, op in pairings():
        if dtype in ("bfloat16", "int32") or dtype not in seen:
            checks.case("all_reduce", 13, dtype, op, "out")
        if dtype not in seen:
            checks.case("all_to_all", 5, dtype, op, "new")
        seen.add(dtype)
    return checks.wrong


def every_algorithm(comm):
    """Every algorithm of the catalogue, pinned, staged both ways and zero-copy."""
    from stretto.program import algorithms

    wrong = []
    for name in algorithms.names():
        if name.startswith("barrier") or algorithms.get(name).refuses(comm.num_ranks):
            continue
        verb = name.split("/")[0]
        for words in ("push packets", "push bulk", "pull bulk"):
            checks = Checks(comm)
            real = getattr(comm, verb)

            def pinned(*args, real=real, pin=f"{name} {words}", **options):
                return real(*args, algorithm=pin, **options)

            setattr(comm, verb, pinned)
            checks.case(verb, 100, "float32", Operator.SUM, "out")
            checks.case(verb, 3, "int16", Operator.SUM, "registered")
            delattr(comm, verb)
            wrong += [f"{name} {words}: {text}" for text in checks.wrong]
    return wrong


def one_by_one(comm, *parts):
    """Return what is wrong in each of several parts; starting ranks takes a second."""
    return [part(comm) for part in parts]


@pytest.mark.parametrize(
    ("num_ranks", "parts"),
    [
        (1, [all_styles]),
        (2, [all_types, every_algorithm]),
        (3, [all_styles]),
        at_night(2, [all_styles]),
        at_night(3, [every_algorithm]),
        at_night(4, [all_styles]),
    ],
)
def test_every_collective_style_type_operator_and_pin(num_ranks, parts):
    """New, out, in place, strided, unaligned and registered arrays all are right.

    What makes sense together is combined right; a pinned schedule is obeyed.
    """
    found = stretto.spawn(one_by_one, *parts, num_ranks=num_ranks)

    assert [[[]] * len(parts)] * num_ranks == found
