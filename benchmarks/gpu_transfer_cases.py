"""What gpu_transfer.py asks of caches and kernels: reshards, and a peer that waits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gpu_transfer_worker import KB, WAIT, Side, Steps, _by, _nothing

from stretto.transfer import deal, kv_layout, prove_deal

FILL = 0xEE
SPREAD = 7
"""Pages are named in steps of this prime, so that no two that follow lie together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """A rank's part of a cache: heads of every layer, in pages."""

    owner: int
    layout: Any
    order: str
    """Axes of each layer's tensor."""
    heads: tuple[int, int]
    block: int
    blocks: int
    layers: int
    dim: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of all layers in one tensor."""
        sizes = {
            "K": 2, "B": self.blocks, "T": self.block, "D": self.dim,
            "H": self.heads[1] - self.heads[0],
        }  # fmt: skip
        return (self.layers, *(sizes[c] for c in self.order))

    @property
    def nbytes(self) -> int:
        """Return how many bytes it has."""
        count = 2
        for size in self.shape:
            count *= size
        return count

    def seen(self, raw: Any, torch: Any) -> Any:
        """Return bytes as (layer, K or V, page, token, head, element)."""
        whole = raw.view(torch.bfloat16).view(self.shape)
        return whole.permute(0, *(1 + self.order.index(c) for c in "KBTHD"))


ORDERS = {"vllm/flash": "KBTHD", "vllm/flashinfer": "BKHTD"}


def caches(
    side: Side, name: str, owners: tuple[int, ...], tokens: int, block: int, layers: int
) -> list[Cache]:
    """Return the parts of a cache of 8 heads of 128, divided by heads."""
    made = []
    for part, owner in enumerate(owners):
        heads, blocks = 8 // len(owners), tokens // block
        layout = kv_layout(
            name, layers=layers, blocks=blocks, block=block, heads=8, dim=128,
            tp=(part, len(owners)),
        )  # fmt: skip
        made.append(
            Cache(
                owner=owner, layout=layout, order=ORDERS[name], block=block, dim=128,
                heads=(part * heads, (part + 1) * heads), blocks=blocks, layers=layers,
            )
        )  # fmt: skip
    return made


def reshards(side: Side) -> None:
    """From n ranks to m: by kernel, each source puts what it has; by NCCL."""
    two = side.ranks == 2
    cases: list[tuple[str, tuple[int, ...], tuple[int, ...]]] = [
        ("2 to 1", (0, 1), (1,) if two else (2,)),
        ("1 to 2", (0,), (1, 0)),
        ("2 to 2", (0, 1), (1, 0) if two else (2, 3)),
    ]
    if side.ranks >= 4:
        cases += [("4 to 2", (0, 1, 2, 3), (2, 0)), ("2 to 4", (0, 2), (0, 1, 2, 3))]
        cases = cases[-2:] + cases[:-2]
    for what, srcs, dsts in cases:
        for name, block in (("vllm/flash", 16), ("vllm/flashinfer", 32)):
            if side.late():
                return
            _reshard(side, f"{what}, {name}", srcs, dsts, name, block)


def _reshard(
    side: Side, what: str, srcs: tuple[int, ...], dsts: tuple[int, ...], name: str,
    block: int,
) -> None:  # fmt: skip
    small = side.args.small
    tokens, layers = (2048, 2) if small else (32768, 4)
    ours = caches(side, "vllm/flash", srcs, tokens, 16, layers)
    theirs = caches(side, name, dsts, tokens, block, layers)
    dealt = deal([c.layout for c in ours], [c.layout for c in theirs])
    prove_deal(dealt)
    moved = tokens * 3 // 4 // 64 * 64
    from_ = [SPREAD * k % ours[0].blocks for k in range(moved // 16)]
    to = [SPREAD * k % theirs[0].blocks for k in range(moved // block)]
    names = side.names(len(ours) + len(theirs))
    held = _share(side, ours, theirs, names)
    there = names[len(ours) :]

    def make(by: str) -> Callable[[], None]:
        puts = []
        for (i, d), plans in sorted(dealt.plans.items()):
            if ours[i].owner != side.rank:
                continue
            a = side.region(names[i], side.rank)[from_]
            b = side.region(there[d], theirs[d].owner)[to]
            for p in plans:
                only = {axis: (x, y) for axis, x, y in p.only}
                puts.append(b.only(**only).prepare_put(a, **_by(side, by)))
        return side.call(*puts) if puts else _nothing

    steps: Steps = {"kernel": side.ready(lambda: make("kernel"))}
    other = side.ready(lambda: _by_packing(side, ours, theirs, held, from_, to))
    steps[f"{side.baseline} and packing"] = other

    def wipe() -> None:
        for key, raw in held.items():
            if key[0] == "dst":
                raw.fill_(FILL)

    def right() -> str:
        wrong = [
            f"part {d}" for d, cache in enumerate(theirs)
            if cache.owner == side.rank
            and not _as_due(side, ours, cache, held["dst", d], from_, to)
        ]  # fmt: skip
        return ", ".join(wrong) and f"{', '.join(wrong)} differ"

    each = theirs[0].nbytes * moved // tokens
    local = sum(ours[i].owner == theirs[d].owner for i, d in dealt.plans)
    notes = [f"{local} of {len(dealt.plans)} parts stay on their GPU"] if local else []
    row = side.case("reshards", what, each, steps, right, wipe, notes=notes)
    if "kernel" in row["us"]:
        reached = each / row["us"]["kernel"] / 1e3 >= 250
        side.goal(row, ">= 250 GB/s per destination", reached)
    side.drop(*names)


def _share(
    side: Side, ours: list[Cache], theirs: list[Cache], names: list[str]
) -> dict[tuple[str, int], Any]:
    """Share this rank's parts; return the bytes of each by side and number."""
    held = {}
    both = [("src", i, c) for i, c in enumerate(ours)]
    both += [("dst", d, c) for d, c in enumerate(theirs)]

    def share() -> None:
        for (which, number, cache), name in zip(both, names, strict=True):
            if cache.owner != side.rank:
                continue
            raw = held[which, number] = side.memory(cache.nbytes)
            raw.fill_(FILL)
            if which == "src":
                raw.copy_(side.draw(cache.nbytes, 100 + number))
            parts = [layer.view(-1) for layer in raw.view(cache.layers, -1)]
            side.share(name, parts, cache.layout)

    side.together(share)
    return held


def _as_due(
    side: Side, ours: list[Cache], cache: Cache, raw: Any, from_: list[int],
    to: list[int],
) -> bool:  # fmt: skip
    """Return whether a part holds what the sources have, and nothing else changed."""
    torch = side.torch
    want = torch.full_like(raw, FILL)
    pages = torch.tensor(from_, device=raw.device)
    places = torch.tensor(to, device=raw.device)
    seen = cache.seen(want, torch).view(torch.int16)
    for i, src in enumerate(ours):
        low, high = _common(src, cache)
        if low >= high:
            continue
        drawn = src.seen(side.draw(src.nbytes, 100 + i), torch).view(torch.int16)
        some = drawn[..., low - src.heads[0] : high - src.heads[0], :]
        came = some[:, :, pages].flatten(2, 3)
        came = came.unflatten(2, (len(to), cache.block))
        seen[:, :, places, :, low - cache.heads[0] : high - cache.heads[0]] = came
    return bool(torch.equal(want, raw))


def _common(a: Cache, b: Cache) -> tuple[int, int]:
    return max(a.heads[0], b.heads[0]), min(a.heads[1], b.heads[1])


def _by_packing(
    side: Side, ours: list[Cache], theirs: list[Cache], held: dict[Any, Any],
    from_: list[int], to: list[int],
) -> Callable[[], None]:  # fmt: skip
    """Return packing, sends and receipts in one batch, and unpacking."""
    torch, dist = side.torch, side.dist
    pages = torch.tensor(from_, device=side.device)
    places = torch.tensor(to, device=side.device)
    pairs = [
        (i, d) for i, src in enumerate(ours) for d, dst in enumerate(theirs)
        if _common(src, dst)[0] < _common(src, dst)[1]
    ]  # fmt: skip

    def part(which: str, number: int, cache: Cache, other: Cache) -> Any:
        low, high = _common(cache, other)
        seen = cache.seen(held[which, number], torch)
        return seen[..., low - cache.heads[0] : high - cache.heads[0], :]

    def step() -> None:
        ops, came = [], []
        for i, d in pairs:
            src, dst = ours[i], theirs[d]
            low, high = _common(src, dst)
            shape = (src.layers, 2, len(from_), src.block, high - low, src.dim)
            packed = None
            if src.owner == side.rank:
                packed = part("src", i, src, dst).index_select(2, pages)
            if dst.owner == side.rank:
                if packed is None:
                    packed = torch.empty(
                        shape, dtype=torch.bfloat16, device=side.device
                    )
                    ops.append(dist.P2POp(dist.irecv, packed, src.owner))
                came.append((d, dst, src, packed))
            elif packed is not None:
                ops.append(dist.P2POp(dist.isend, packed, dst.owner))
        for work in dist.batch_isend_irecv(ops) if ops else ():
            work.wait()
        for d, dst, src, packed in came:
            pages_there = packed.flatten(2, 3).unflatten(2, (len(to), dst.block))
            part("dst", d, dst, src).index_copy_(2, places, pages_there)

    return step


# A kernel of the peer that waits.


def _ping_pong(side: Side, put: Any, waiter: Any, rounds: int) -> Callable[[], None]:
    """Return the replay of puts and waits in turn: rank 0 puts first, rank 1 waits."""
    graph = side.torch.cuda.CUDAGraph()
    with side.torch.cuda.graph(graph, stream=side.torch.cuda.Stream()):
        for nth in range(rounds):
            if side.rank == 0:
                put(side.torch.cuda.current_stream())
            waiter.enqueue(copies=nth == rounds - 1)
            if side.rank == 1:
                put(side.torch.cuda.current_stream())
    replay: Callable[[], None] = graph.replay
    return replay


def signals(side: Side) -> None:
    """Half a round of puts, each with a word that a kernel of the peer waits for."""
    if not side.is_gpu:
        return
    from gpu_transfer_kernels import Waiter

    nbytes, rounds = KB, 50
    names = side.names(4)
    data, words = names[:2], names[2:]
    mine = side.memory(2 * nbytes)
    flags = side.torch.zeros(1, dtype=side.torch.int64, device=side.device)
    out = side.memory(nbytes)
    waiter = Waiter(flags, mine[nbytes:], out, side.torch)

    def share() -> None:
        if side.rank < 2:
            mine.zero_()
            side.share(data[side.rank], mine, f"N={2 * nbytes} uint8")
            side.share(words[side.rank], flags, "N=1 int64")
            waiter.warm()

    side.together(share)
    peer = 1 - side.rank

    def make() -> Callable[[], None]:
        if side.rank > 1:
            return _nothing
        there = side.peers[peer].region(data[peer]).wait(WAIT)[nbytes:]
        word = side.peers[peer].region(words[peer]).wait(WAIT)[0:1]
        ours = side.mine[data[side.rank]][:nbytes]
        put = there.prepare_put(ours, by="kernel", signal=word)
        return _ping_pong(side, put, waiter, rounds)

    steps: Steps = {"kernel": side.ready(make)}

    def wipe() -> None:
        mine[:nbytes].copy_(side.draw(nbytes, 300 + side.rank))
        mine[nbytes:].zero_()
        out.zero_()

    def right() -> str:
        if side.rank > 1:
            return ""
        same = side.torch.equal(out, side.draw(nbytes, 300 + peer))
        late = waiter.failures()
        return "" if same and not late else f"same {same}, waits in vain: {late}"

    what = "1 KB put, seen by the peer's kernel"
    row = side.case("signals", what, nbytes, steps, right, wipe)
    for name in row["us"]:
        row["us"][name] = round(row["us"][name] / (2 * rounds), 3)
    row["failed"].update({"late": late} if (late := side.agree(right())) else {})
    if "kernel" in row["us"]:
        side.goal(row, "<= 4 us", row["us"]["kernel"] <= 4)
    side.drop(*names)
