"""What is measured, and how: one function a scheme, rows out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from stretto.bench.transfers.models import model
from stretto.bench.transfers.nixl import nixl_rows
from stretto.bench.transfers.pair import Pair, Times, timed
from stretto.errors import UnknownNameError
from stretto.transfer import Layout, deal, prove_deal

__all__ = ["SCHEMES", "Row", "measure"]


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
    who: str = "stretto"

    @property
    def gb_per_s(self) -> float:
        """Return its rate, in 10^9 bytes a second."""
        return self.nbytes / max(self.us, 1e-3) / 1e3


def _row(scheme: str, what: str, path: str, nbytes: int, pieces: int, t: Times) -> Row:
    return Row(
        scheme=scheme, what=what, path=path, nbytes=nbytes, pieces=pieces,
        us=t.median * 1e6, p99_us=t.at(0.99) * 1e6,
    )  # fmt: skip


def _pairwise(paths: Sequence[str], sizes: Sequence[int], name: str) -> Iterator[Row]:
    """Yield puts and gets of plain buffers."""
    most = max(sizes)
    for path in paths:
        where = "arena" if path == "shared" else "private"
        with Pair(path="tcp" if path == "tcp" else "near") as pair:
            buffer = Layout(f"N={most} uint8")
            there = pair.there(buffer, where=where)
            here, _ = pair.here(buffer)
            for n in sizes:
                put = there[:n].prepare_put(here[:n])
                yield _row("pairwise", f"put {n}", path, n, 1, timed(put))
                get = there[:n].prepare_get(here[:n])
                yield _row("pairwise", f"get {n}", path, n, 1, timed(get))


def _many_to_one(
    paths: Sequence[str], sizes: Sequence[int], name: str
) -> Iterator[Row]:
    """Yield what one process reads from four, all at once."""
    many = 4
    for path in paths:
        with Pair(path="tcp" if path == "tcp" else "near", servers=many) as pair:
            for n in sizes:
                layout = Layout(f"N={n} uint8")
                where = "arena" if path == "shared" else "private"
                from_ = [pair.there(layout, where=where, nth=i) for i in range(many)]
                to, _ = pair.here(Layout(f"N={many * n} uint8"))

                def all_of_them(from_=from_, to=to, n=n) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
                    begun = [
                        r.get(to[i * n : (i + 1) * n]) for i, r in enumerate(from_)
                    ]
                    for x in begun:
                        x.wait(30)

                times = timed(all_of_them)
                yield _row("many-to-one", f"4 x get {n}", path, many * n, many, times)


def _mismatch(paths: Sequence[str], sizes: Sequence[int], name: str) -> Iterator[Row]:
    """Yield a model's cache, sharded for two ranks, to a rank that has all of it."""
    made = model(name)
    layers, block, blocks = min(4, made.layers), 16, 64
    for path in paths:
        with Pair(path="tcp" if path == "tcp" else "near") as pair:
            srcs = [
                made.cache(blocks, block, layers=layers, tp=(r, 2)) for r in range(2)
            ]
            for order in ("vllm/flash", "vllm/flashinfer"):
                if made.layout.endswith("mla"):
                    return
                dst = made.cache(blocks, block, layers=layers, layout=order)
                dealt = deal(srcs, [dst])
                prove_deal(dealt)
                there = pair.there(
                    dst, where="arena" if path == "shared" else "private"
                )
                puts = []
                shuffled = np.random.default_rng(1).permutation(blocks)
                for (s, _), plans in dealt.plans.items():
                    here, _ = pair.here(srcs[s])
                    for p in plans:
                        ranges = {n: (a, b) for n, a, b in p.only}
                        to = there[shuffled].only(**ranges)
                        puts.append(to.prepare_put(here.view))

                def both(puts=puts) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
                    for put in puts:
                        put()

                nbytes = dst.part_bytes * dst.num_parts
                pieces = sum(p.pieces for p in puts)
                what = f"{name}, 2 ranks to 1, {order}"
                yield _row("tp-mismatch", what, path, nbytes, pieces, timed(both))


def _kv(paths: Sequence[str], sizes: Sequence[int], name: str) -> Iterator[Row]:
    """Yield a request's pages of a model's cache, to other pages of a peer's."""
    made = model(name)
    layers, block, blocks = min(8, made.layers), 16, 64
    for path in paths:
        with Pair(path="tcp" if path == "tcp" else "near") as pair:
            layout = made.cache(2 * blocks, block, layers=layers)
            there = pair.there(layout, where="arena" if path == "shared" else "private")
            here, _ = pair.here(layout)
            order = np.random.default_rng(2).permutation(2 * blocks)
            put = there[order[:blocks]].prepare_put(here[order[blocks:]])
            nbytes = layout.part_bytes * layout.num_parts // 2
            what = f"{name}, {blocks * block} tokens of {layers} layers"
            yield _row("kv", what, path, nbytes, put.pieces, timed(put))


SCHEMES: dict[str, Callable[[Sequence[str], Sequence[int], str], Iterator[Row]]] = {
    "pairwise": _pairwise,
    "many-to-one": _many_to_one,
    "tp-mismatch": _mismatch,
    "kv": _kv,
}
"""By name: as nixlbench and kvbench call them."""
PATHS = ("shared", "cross-memory", "tcp")


def measure(
    schemes: Sequence[str], *, paths: Sequence[str] = PATHS,
    sizes: Sequence[int] = (8, 4096, 65536, 1 << 20, 16 << 20),
    model: str = "llama-3.1-8b", peers: Sequence[str] = (),
) -> Iterator[Row]:  # fmt: skip
    """Yield the rows of schemes; of peers, pairs only."""
    for path in paths:
        if path not in PATHS:
            raise UnknownNameError.among("path", path, PATHS)
    for name in schemes or SCHEMES:
        if name not in SCHEMES:
            raise UnknownNameError.among("scheme", name, SCHEMES)
        yield from SCHEMES[name](paths, sizes, model)
    if "nixl" in peers:
        for what, nbytes, path, times in nixl_rows(sizes, paths):
            yield Row(
                scheme="pairwise", what=what, path=path, nbytes=nbytes, pieces=1,
                us=times.median * 1e6, p99_us=times.at(0.99) * 1e6, who="nixl",
            )  # fmt: skip
