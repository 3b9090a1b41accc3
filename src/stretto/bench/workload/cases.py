"""What is measured: a call with its sizes, its data, and what must come out.

Every measurement is a call of a collective, or a pattern between pairs. Inputs are
small whole numbers, so that sums are exact in every type and a wrong one cannot hide in
a tolerance. Legend: n ranks; a matrix has a row for each sender.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.bench.contender import PreparedCall
from stretto.bench.workload.traffic import spread, weights
from stretto.errors import CallError, UnknownNameError
from stretto.program import collectives
from stretto.program.collectives import Array, Operator, Shape, narrow, storage, widen
from stretto.program.ir import Params, freeze
from stretto.runtime.calls import VERBS

VECTOR = tuple(name for name, verb in VERBS.items() if verb.unequal)
"""Collectives with unequal parts: rank r's is in proportion to r + 1."""
PAIRS = ("latency", "bw", "bibw", "multi_lat")
"""Between two ranks; multi_lat: between ranks r and r + n/2, all at once."""
PATTERNS = ("pairwise", "incast", "one_to_many", "moe_dispatch", "moe_combine")
"""Who sends how much to whom, as an all_to_all_v."""
_EQUAL = tuple(name for name in VERBS if name not in VECTOR)
TESTS = (*PAIRS, *_EQUAL, *VECTOR, *PATTERNS)
"""Everything that `all` measures; `matrix` needs a file."""
_BLOCK = 1_000_003
"""Larger inputs repeat themselves: no part of a vector is a multiple of this."""
WINDOW = 16
"""Messages that bw and bibw send before they wait for an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallCase:
    """One thing that is measured, the same on every rank."""

    test: str
    collective: str
    """What carries it; `p2p` for pairs."""
    nbytes: int
    """The full vector, as in `stretto simulate`; a message, between pairs."""
    num_ranks: int
    dtype: str = "float32"
    op: str = "sum"
    counts: tuple[int, ...] = ()
    params: Params = field(default_factory=lambda: freeze({}))
    unequal: bool = False
    in_place: bool = False

    def __hash__(self) -> int:
        """Hash what tells cases apart; parameters are a mapping."""
        return hash((self.test, self.nbytes, self.num_ranks, self.dtype, self.op))

    @property
    def shape(self) -> Shape:
        """Return the collective's shape."""
        return Shape(num_ranks=self.num_ranks, params=self.params)

    @property
    def scale(self) -> int:
        """Return how many messages, one after another, a call of this test sends."""
        if self.test in ("bw", "bibw"):
            return WINDOW
        return 2 if self.collective == "p2p" else 1

    @property
    def root(self) -> int:
        """Return the root, 0 where there is none."""
        root = self.params.get("root", 0)
        assert isinstance(root, int), "case_of put it there"
        return root

    @property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """Return who sends to whom, between pairs."""
        n = self.num_ranks
        if self.test == "multi_lat":
            return tuple((r, r + n // 2) for r in range(n // 2))
        return ((0, 1),) if n > 1 else ()

    def side(self, rank: int) -> tuple[int, bool] | None:
        """Return whom a rank has to do with, between pairs, and whether it begins."""
        for first, second in self.pairs:
            if rank in (first, second):
                return (second, True) if rank == first else (first, False)
        return None

    def elements(self, rank: int) -> tuple[int, int]:
        """Return how many elements a rank passes and receives."""
        if self.collective == "p2p":
            count = self.counts[0]
            mine = any(rank in pair for pair in self.pairs)
            return (count, count) if mine else (0, 0)
        kind = collectives.get(self.collective)
        sizes = kind.symbol_sizes(self.shape, np.asarray(self.counts), 1)
        return (
            _total(kind.input_runs(self.shape, rank), sizes),
            _total(kind.output_runs(self.shape, rank), sizes),
        )

    @property
    def buffer_bytes(self) -> int:
        """Return the size of the largest buffer that a rank needs."""
        each = (n for q in range(self.num_ranks) for n in self.elements(q))
        return max(each, default=0) * storage(self.dtype).itemsize

    def matrix(self) -> NDArray[np.int64]:
        """Return how many elements each rank sends to each."""
        return np.asarray(self.counts, np.int64).reshape(self.num_ranks, -1)

    def fill(self, prepared: PreparedCall, rank: int, seed: int) -> None:
        """Put the input in, and into the output what no result is."""
        if self.collective == "barrier":
            return
        check = Check.fresh(self, rank, seed)
        prepared.out.poison(check.want)
        if self.test == "bw" and rank == 0:  # it receives nothing
            prepared.out.write(check.want)
        if self.collective != "broadcast":
            prepared.x.write(check.x)
        elif rank == self.root:
            prepared.out.write(check.x)

    def wrong(self, prepared: PreparedCall, rank: int, seed: int) -> str:
        """Return what is wrong with a result; nothing when all is right."""
        check = Check.fresh(self, rank, seed)
        if not check.want.size or prepared.out.equals(check.want):
            return ""
        return check.wrong(prepared.out.read(), self.dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One rank's fresh input, and what it must receive."""

    x: Array
    want: Array

    @classmethod
    @functools.lru_cache(maxsize=2)
    def fresh(cls, case: CallCase, rank: int, seed: int) -> Check:
        """Draw everybody's inputs, the same on every rank, and ask the oracle.

        The last two are kept: contenders of a case are checked with the same data.
        """
        rng = np.random.default_rng(seed)
        blocks = [_draw(rng, case, q) for q in range(case.num_ranks)]
        counts = [case.elements(q)[0] for q in range(case.num_ranks)]
        kind = None if case.collective == "p2p" else collectives.get(case.collective)
        if kind is not None and kind.reduces:
            mine = np.resize(blocks[rank], counts[rank])
            return cls(x=mine, want=_reduced(case, rank, blocks))
        inputs = [np.resize(b, c) for b, c in zip(blocks, counts, strict=True)]
        if kind is None:
            peers = {a: b for pair in case.pairs for a, b in (pair, pair[::-1])}
            source = peers.get(rank, rank)
            if case.test == "bw" and rank == 0:
                source = rank  # it only hears that all has come
            return cls(x=inputs[rank], want=inputs[source])
        outputs = kind.oracle(case.shape, inputs, Operator.SUM, np.asarray(case.counts))
        return cls(x=inputs[rank], want=outputs[rank])

    def wrong(self, got: Array, dtype: str) -> str:
        """Return what is wrong with an output; nothing when all is right."""
        if got.size != self.want.size:
            return f"{got.size} elements, want {self.want.size}"
        if np.array_equal(got.ravel(), self.want):
            return ""
        wide, want = (widen(a.ravel(), dtype) for a in (got, self.want))
        if wide.dtype.kind in "fc":
            near = np.isclose(wide, want, rtol=2.0**-7 if _is_half(dtype) else 1e-5)
        else:
            near = wide == want
        if near.all():
            return ""
        at = int(np.argmin(near))
        return f"element {at} is {wide[at]}, want {want[at]}"


def case_of(
    test: str,
    nbytes: int,
    num_ranks: int,
    *,
    dtype: str = "float32",
    op: str = "sum",
    root: int = 0,
    in_place: bool = False,
    skew: float = 1.0,
    seed: int = 0,
    traffic: Sequence[Sequence[float]] | None = None,
) -> CallCase:
    """Return the case of a test at a size."""
    case = CallCase(
        test=test, collective=test, nbytes=nbytes, num_ranks=num_ranks,
        dtype=dtype, op=op, in_place=in_place,
    )  # fmt: skip
    item = storage(dtype).itemsize
    count = math.ceil(nbytes / item)
    if test in PAIRS:
        if num_ranks < 2:
            raise CallError(f"{test}: {num_ranks} ranks; want at least 2")
        return replace(case, collective="p2p", counts=(count,))
    if test in PATTERNS or test == "matrix":
        shares = weights(test, num_ranks, skew=skew, seed=seed, given=traffic)
        counts = spread(shares, count)
        return replace(
            case, collective="all_to_all", counts=counts, unequal=True, in_place=False
        )
    if test in VECTOR:
        return _vector(case, count, root)
    if test not in collectives.names():
        raise UnknownNameError.among("test", test, (*TESTS, "matrix"))
    return _equal(case, item, root)


def _equal(case: CallCase, item: int, root: int) -> CallCase:
    kind, n = collectives.get(case.collective), case.num_ranks
    params: dict[str, Any] = {"root": root} if kind.rooted else {}
    if case.collective == "broadcast":  # elsewhere it has no other form
        case = replace(case, in_place=True)
    if case.collective == "permute":
        params["pairs"] = tuple((r, (r + 1) % n) for r in range(n)) if n > 1 else ()
    case = replace(case, params=freeze(params))
    if kind.reduces:
        collectives.check(Operator.named(case.op), case.dtype)
    counts = kind.equal_counts(case.shape, nbytes=case.nbytes, itemsize=item)
    return replace(case, counts=tuple(counts))


def _vector(case: CallCase, count: int, root: int) -> CallCase:
    name, n = case.test.removesuffix("_v"), case.num_ranks
    kind = collectives.get(name)
    params: dict[str, Any] = {"root": root} if kind.rooted else {}
    parts = [count * 2 * (r + 1) // (n * (n + 1)) for r in range(n)]
    counts = tuple(parts)
    if name == "all_to_all":
        counts = tuple(parts[r] for _ in range(n) for r in range(n))
    return replace(
        case,
        collective=name,
        params=freeze(params),
        counts=counts,
        unequal=True,
        in_place=False,
    )


def _total(runs: Any, sizes: Array) -> int:
    return int(sum(sizes[r.first : r.first + r.stop - r.start].sum() for r in runs))


def _reduced(case: CallCase, rank: int, blocks: Sequence[Array]) -> Array:
    """Return a rank's part of the combination: that of the blocks, repeated."""
    wide = [widen(block, case.dtype) for block in blocks]
    op, none = Operator.named(case.op), np.zeros(0)
    total = collectives.get("all_reduce").oracle(case.shape, wide, op, none)[0]
    n_in, n_out = case.elements(rank)
    whole = np.resize(narrow(total, case.dtype), n_in)
    start = sum(case.counts[:rank]) if n_out < n_in else 0
    return whole[start : start + n_out]


def _draw(rng: np.random.Generator, case: CallCase, rank: int) -> Array:
    """Return a rank's input, or the block of which it is made by repetition."""
    count = min(case.elements(rank)[0], _BLOCK)
    if case.op == "prod":
        low, high = 1, 3
    elif case.dtype == "bool":
        low, high = 0, 2
    else:
        low, high = 0, 9
    values = rng.integers(low, high, count, dtype=np.int8)
    if case.dtype == "bfloat16":
        return narrow(values.astype(np.float32), case.dtype)
    return values.astype(storage(case.dtype))


def _is_half(dtype: str) -> bool:
    return dtype in ("float16", "bfloat16")
