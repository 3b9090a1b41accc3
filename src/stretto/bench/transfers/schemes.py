"""What is measured, and how: one function a scheme, rows out."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stretto.bench.transfers import peers as libraries
from stretto.bench.transfers.cases import Case
from stretto.bench.transfers.contest import Refusal, contest
from stretto.bench.transfers.models import MODELS, model
from stretto.bench.transfers.pair import Pair, Times, timed
from stretto.errors import UnknownNameError
from stretto.transfer import Layout, deal, prove_deal

__all__ = ["SCHEMES", "Refusal", "Row", "measure"]

_MANY = 4
_RANKS = ((2, 1), (1, 2), (2, 4))
"""Of a cache's tensor parallelism: before, and after."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure."""

    scheme: str
    what: str
    path: str
    nbytes: int
    pieces: int
    us: float
    p99_us: float
    who: str = libraries.OURS
    is_right: bool = True
    """Whether what has arrived is what was sent; looked at where peers are beside."""

    @property
    def gb_per_s(self) -> float:
        """Return its rate, in 10^9 bytes a second."""
        return self.nbytes / max(self.us, 1e-3) / 1e3


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What is asked for."""

    sizes: tuple[int, ...]
    model: str
    peers: tuple[str, ...]


def _row(scheme: str, what: str, path: str, nbytes: int, pieces: int, t: Times) -> Row:
    return Row(
        scheme=scheme, what=what, path=path, nbytes=nbytes, pieces=pieces,
        us=t.median * 1e6, p99_us=t.at(0.99) * 1e6,
    )  # fmt: skip


def _beside(
    scheme: str, path: str, cases: Sequence[Case], who: Sequence[str]
) -> Iterator[Row | Refusal]:
    """Yield what we and others take for cases, in turns."""
    for found in contest((libraries.OURS, *who), path, cases):
        if isinstance(found, Refusal):
            yield found
            continue
        case = found.case
        yield Row(
            scheme=scheme, what=case.label, path=path, nbytes=case.total,
            pieces=case.count, us=found.at(0.5) * 1e6, p99_us=found.at(0.99) * 1e6,
            who=found.who, is_right=found.is_right,
        )  # fmt: skip


def _pairwise(path: str, task: Task) -> Iterator[Row | Refusal]:
    """Yield puts and gets of plain buffers."""
    both = ("put", "get")
    cases = [Case(what=w, path=path, nbytes=n) for n in task.sizes for w in both]
    yield from _beside("pairwise", path, cases, task.peers)


def _blocks(path: str, task: Task) -> Iterator[Row | Refusal]:
    """Yield puts of shuffled pages, large and small."""
    some = ((2048, 32 << 10), (32768, 1 << 10))
    cases = [Case(what="blocks", path=path, nbytes=n, count=c) for c, n in some]
    yield from _beside("blocks", path, cases, task.peers)


def _notify(path: str, task: Task) -> Iterator[Row | Refusal]:
    """Yield the trip of a notification and its answer."""
    yield from _beside("notify", path, [Case(what="notify", path=path)], task.peers)


def _pair(path: str, servers: int = 1) -> Pair:
    return Pair(path="tcp" if path == "tcp" else "near", servers=servers)


def _where(path: str) -> str:
    return "arena" if path == "shared" else "private"


def _all_at_once(begin: Sequence[Callable[[], Any]]) -> Callable[[], None]:
    def call() -> None:
        for x in [one() for one in begin]:
            x.wait(30)

    return call


def _many_to_one(path: str, task: Task) -> Iterator[Row]:
    """Yield what one process reads from four, all at once."""
    yield from _star(path, task, "many-to-one", "get")


def _one_to_many(path: str, task: Task) -> Iterator[Row]:
    """Yield what one process writes to four, all at once."""
    yield from _star(path, task, "one-to-many", "put")


def _star(path: str, task: Task, scheme: str, what: str) -> Iterator[Row]:
    with _pair(path, servers=_MANY) as pair:
        for n in task.sizes:
            layout = Layout(f"N={n} uint8")
            ours, _ = pair.here(Layout(f"N={_MANY * n} uint8"))
            begin = []
            for nth in range(_MANY):
                there = pair.there(layout, where=_where(path), nth=nth)
                move, part = getattr(there, what), ours[nth * n : (nth + 1) * n]
                begin.append(functools.partial(move, part))
            times = timed(_all_at_once(begin))
            said = f"{_MANY} x {what} {n}"
            yield _row(scheme, said, path, _MANY * n, _MANY, times)


def _mismatch(path: str, task: Task) -> Iterator[Row]:
    """Yield a model's cache, sharded for some ranks, to ranks of another number."""
    made = model(task.model)
    if "mla" in made.layout:
        return  # every rank holds all of it
    layers, block, blocks = min(4, made.layers), 16, 64
    shuffled = np.random.default_rng(1).permutation(blocks)
    with _pair(path) as pair:
        for (many, few), order in itertools.product(_RANKS, ("flash", "flashinfer")):
            layout = f"vllm/{order}"
            cache = functools.partial(made.cache, blocks, block, layers=layers)
            srcs = [cache(tp=(r, many)) for r in range(many)]
            dsts = [cache(tp=(r, few), layout=layout) for r in range(few)]
            dealt = deal(srcs, dsts)
            prove_deal(dealt)
            ours = [pair.here(src)[0] for src in srcs]
            there = [pair.there(dst, where=_where(path)) for dst in dsts]
            puts = [
                there[d][shuffled]
                .only(**{n: (a, b) for n, a, b in p.only})
                .prepare_put(ours[s].view)
                for (s, d), plans in dealt.plans.items()
                for p in plans
            ]
            nbytes = sum(dst.part_bytes * dst.num_parts for dst in dsts)
            pieces = sum(p.pieces for p in puts)
            said = f"{task.model}, {many} ranks to {few}, {layout}"
            times = timed(functools.partial(_each, puts))
            yield _row("tp-mismatch", said, path, nbytes, pieces, times)


def _each(puts: Sequence[Callable[[], None]]) -> None:
    for put in puts:
        put()


def _kv(path: str, task: Task) -> Iterator[Row]:
    """Yield a request's pages of models' caches, to other pages of a peer's.

    At once, and layer by layer, each with a notification.
    """
    for name in MODELS if task.model == "all" else (task.model,):
        made = model(name)
        layers, block, blocks = min(8, made.layers), 16, 64
        layout = made.cache(2 * blocks, block, layers=layers)
        order = np.random.default_rng(2).permutation(2 * blocks)
        with _pair(path) as pair:
            there = pair.there(layout, where=_where(path))
            ours, _ = pair.here(layout)
            to, from_ = there[order[:blocks]], ours[order[blocks:]]
            put = to.prepare_put(from_)
            each = [
                to.layer(n).prepare_put(from_.layer(n), notify=b"layer")
                for n in range(layers)
            ]
            nbytes = layout.part_bytes * layout.num_parts // 2
            said = f"{name}, {blocks * block} tokens of {layers} layers"
            yield _row("kv", said, path, nbytes, put.pieces, timed(put))
            times = timed(functools.partial(_each, each))
            yield _row("kv", f"{said}, by layer", path, nbytes, put.pieces, times)


SCHEMES: dict[str, Callable[[str, Task], Iterator[Row | Refusal]]] = {
    "pairwise": _pairwise,
    "blocks": _blocks,
    "notify": _notify,
    "many-to-one": _many_to_one,
    "one-to-many": _one_to_many,
    "tp-mismatch": _mismatch,
    "kv": _kv,
}
"""By name: as nixlbench and kvbench call them. Peers are beside us in the first three.
"""
PATHS = ("shared", "cross-memory", "tcp")


def measure(
    schemes: Sequence[str], *, paths: Sequence[str] = PATHS,
    sizes: Sequence[int] = (8, 4096, 65536, 1 << 20, 16 << 20),
    model: str = "llama-3.1-8b", peers: Sequence[str] = (),
) -> Iterator[Row | Refusal]:  # fmt: skip
    """Yield the rows of schemes, and which peers are missing, and why."""
    task = Task(sizes=tuple(sizes), model=model, peers=libraries.expand(peers))
    for path in paths:
        if path not in PATHS:
            raise UnknownNameError.among("path", path, PATHS)
    for name in schemes or SCHEMES:
        if name not in SCHEMES:
            raise UnknownNameError.among("scheme", name, SCHEMES)
        for path in paths:
            yield from SCHEMES[name](path, task)
