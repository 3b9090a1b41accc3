"""What is measured between two processes: one function a scheme, rows out."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from stretto.bench import peers as libraries
from stretto.bench.contender import CallBuffer, Contender, PreparedCall
from stretto.bench.peers._side import MovingSide
from stretto.bench.timing import each_us
from stretto.bench.transfers.contest import (
    Refusal,
    TransferRow,
    contest,
    in_turns,
    row_of,
)
from stretto.bench.transfers.pair import EnginePair
from stretto.bench.workload.moves import MoveCase
from stretto.errors import UnknownNameError
from stretto.transfer import Layout, deal, kv_layout, prove_deal

_MANY = 4
_RANKS = ((2, 1), (1, 2), (2, 4))
"""Of a cache's tensor parallelism: before, and after."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheModel:
    """What the KV cache of a model depends on."""

    layers: int
    heads: int
    dim: int
    layout: str = "vllm/flash"

    def cache(
        self, blocks: int, block: int, *, layers: int = 0, tp: tuple[int, int] = (0, 1),
        layout: str = "",
    ) -> Layout:  # fmt: skip
        """Return a rank's cache; of so many layers only, where that is said."""
        named = layout or self.layout
        heads = {} if named.endswith("mla") else {"heads": self.heads, "tp": tp}
        return kv_layout(
            named, layers=layers or self.layers, blocks=blocks, block=block,
            dim=self.dim, **heads,  # type: ignore[arg-type]
        )  # fmt: skip


MODELS = {
    "llama-3.1-8b": CacheModel(layers=32, heads=8, dim=128),
    "llama-3.1-70b": CacheModel(layers=80, heads=8, dim=128),
    "qwen3-8b": CacheModel(layers=36, heads=8, dim=128),
    "qwen3-235b": CacheModel(layers=94, heads=4, dim=128),
    "gpt-oss-20b": CacheModel(layers=24, heads=8, dim=64),
    "gpt-oss-120b": CacheModel(layers=36, heads=8, dim=64),
    "deepseek-r1": CacheModel(layers=61, heads=1, dim=576, layout="vllm/mla"),
}
"""By name: as their configurations say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferTask:
    """What is asked for."""

    sizes: tuple[int, ...]
    model: str
    who: tuple[str, ...]


class _Begun(Contender):
    """A call of ours between engines, timed where it is made."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call

    def prepare(self, case: MoveCase, x: CallBuffer, out: CallBuffer) -> PreparedCall:
        """Return it as it is."""
        return PreparedCall(call=self._call, rounds=partial(each_us, self._call))


def _ours(
    what: str, path: str, nbytes: int, pieces: int, call: Callable[[], Any]
) -> TransferRow | Refusal:
    """Return what a call of ours takes, which moves so many bytes in pieces."""
    case = MoveCase(what="put", path=path, nbytes=nbytes)
    found = in_turns({libraries.OURS: _Begun(call)}, case)[libraries.OURS]
    row = row_of(libraries.OURS, case, found, what)
    return replace(row, pieces=pieces) if isinstance(row, TransferRow) else row


def _pairwise(path: str, task: TransferTask) -> Iterator[TransferRow | Refusal]:
    """Yield puts and gets of plain buffers."""
    both = ("put", "get")
    cases = [MoveCase(what=w, path=path, nbytes=n) for n in task.sizes for w in both]
    yield from contest(task.who, path, cases)


def _blocks(path: str, task: TransferTask) -> Iterator[TransferRow | Refusal]:
    """Yield puts of shuffled pages, large and small."""
    some = ((2048, 32 << 10), (32768, 1 << 10))
    cases = [MoveCase(what="blocks", path=path, nbytes=n, count=c) for c, n in some]
    yield from contest(task.who, path, cases)


def _notify(path: str, task: TransferTask) -> Iterator[TransferRow | Refusal]:
    """Yield the trip of a notification and its answer."""
    yield from contest(task.who, path, [MoveCase(what="notify", path=path)])


def _model(name: str) -> CacheModel:
    if name not in MODELS:
        raise UnknownNameError.among("model", name, MODELS)
    return MODELS[name]


def _pair(path: str, servers: int = 1) -> EnginePair:
    return EnginePair(path="tcp" if path == "tcp" else "near", servers=servers)


def _where(path: str) -> str:
    return "arena" if path == "shared" else "private"


def _all_at_once(begin: Sequence[Callable[[], Any]]) -> Callable[[], None]:
    def call() -> None:
        for x in [one() for one in begin]:
            x.wait(30)

    return call


def _star(what: str, path: str, task: TransferTask) -> Iterator[TransferRow | Refusal]:
    """Yield what one process reads from four, or writes to them, all at once."""
    with _pair(path, servers=_MANY) as pair:
        for n in task.sizes:
            layout = Layout(f"N={n} uint8")
            ours, _ = pair.here(Layout(f"N={_MANY * n} uint8"))
            begin = []
            for nth in range(_MANY):
                there = pair.there(layout, where=_where(path), nth=nth)
                move, part = getattr(there, what), ours[nth * n : (nth + 1) * n]
                begin.append(partial(move, part))
            said, at_once = f"{_MANY} x {what} {n}", _all_at_once(begin)
            yield _ours(said, path, _MANY * n, _MANY, at_once)


def _mismatch(path: str, task: TransferTask) -> Iterator[TransferRow | Refusal]:
    """Yield a model's cache, sharded for some ranks, to ranks of another number."""
    made = _model(task.model)
    if "mla" in made.layout:
        return  # every rank holds all of it
    layers, block, blocks = min(4, made.layers), 16, 64
    shuffled = np.random.default_rng(1).permutation(blocks)
    with _pair(path) as pair:
        for (many, few), order in itertools.product(_RANKS, ("flash", "flashinfer")):
            layout = f"vllm/{order}"
            cache = partial(made.cache, blocks, block, layers=layers)
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
            yield _ours(said, path, nbytes, pieces, partial(_each, puts))


def _each(puts: Sequence[Callable[[], None]]) -> None:
    for put in puts:
        put()


def _kv(path: str, task: TransferTask) -> Iterator[TransferRow | Refusal]:
    """Yield a request's pages of models' caches, to other pages of a peer's.

    At once, and layer by layer, each with a notification.
    """
    for name in MODELS if task.model == "all" else (task.model,):
        made = _model(name)
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
            yield _ours(said, path, nbytes, put.pieces, put)
            by_layer = partial(_each, each)
            yield _ours(f"{said}, by layer", path, nbytes, put.pieces, by_layer)


SCHEMES: dict[str, Callable[[str, TransferTask], Iterator[TransferRow | Refusal]]] = {
    "pairwise": _pairwise,
    "blocks": _blocks,
    "notify": _notify,
    "many-to-one": partial(_star, "get"),
    "one-to-many": partial(_star, "put"),
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
) -> Iterator[TransferRow | Refusal]:  # fmt: skip
    """Yield the rows of schemes, and which peers are missing, and why."""
    who = (libraries.OURS, *libraries.expand(peers, MovingSide))
    task = TransferTask(sizes=tuple(sizes), model=model, who=who)
    for path in paths:
        if path not in PATHS:
            raise UnknownNameError.among("path", path, PATHS)
    for name in schemes or SCHEMES:
        if name not in SCHEMES:
            raise UnknownNameError.among("scheme", name, SCHEMES)
        for path in paths:
            for row in SCHEMES[name](path, task):
                yield replace(row, scheme=name) if isinstance(row, TransferRow) else row
