"""What transfer.py tries of memory on a GPU that no peer maps: through pinned memory.

To an engine behind TCP, to private memory of a process on this host, and to files. What
has arrived was read by the process that owns it.
"""

# ruff: noqa: T201  (part of a program: it prints its report)

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from transfer_side import SECRET, WAIT, bytes_of, random_parts, same

from stretto.transfer import Engine, Layout, kv_layout
from stretto.transfer.stores import Files, load, save


class _Far:
    """An engine here, one in the child, and TCP between them."""

    def __init__(self, bench: Any) -> None:
        self._bench, self.child = bench, bench.child
        address = self.child.ask(do="engine", name="far", listen=True)
        self.engine = Engine("near", job=bench.job, secret=SECRET)
        self.peer = self.engine.connect(address).wait(WAIT)

    def there(self, layout: Layout, where: str) -> tuple[str, Any]:
        name = self._bench.name()
        self.child.share("far", name, layout, where=where, fill=0xEE)
        return name, self.peer.region(name).wait(WAIT)

    def here(self, layout: Layout, parts: list[Any], where: str) -> Any:
        made = [torch.from_numpy(p.copy()) for p in parts]
        tensors = [t.cuda() for t in made] if where == "gpu" else made
        given = tensors if layout.parts else tensors[0]
        torch.cuda.synchronize()
        return self.engine.share(given, self._bench.name(), layout), tensors


def stage_far(bench: Any, s: Any) -> None:
    """Caches, strided tensors and streams, over TCP; with sums."""
    far = _Far(bench)
    sizes = {"layers": 3, "heads": 4, "dim": 64}
    a = kv_layout("vllm/flash", blocks=12, block=16, **sizes)
    b = kv_layout("vllm/flashinfer", blocks=6, block=32, tp=(1, 2), **sizes)
    for ours, theirs in (("gpu", "gpu"), ("gpu", "private"), ("private", "gpu")):
        src = random_parts(a, 1)
        region, _ = far.here(a, src, ours)
        name, there = far.there(b, theirs)
        from_, to = [7, 0, 3, 11], [5, 2]
        x = there[to].put(region[from_], checksum=True, notify=b"far", deadline=WAIT)
        x.wait(WAIT)
        bench.child.ask(do="notified", engine="far", tag=b"far".hex())
        got = bench.child.read(name, b)
        s.expect(same(a, src, from_, b, got, to), f"put {ours} to far {theirs}")
        back, tensors = far.here(a, [np.zeros_like(p) for p in src], ours)
        there[to].get(back[from_], checksum=True, deadline=WAIT).wait(WAIT)
        torch.cuda.synchronize()
        mine = [bytes_of(t.cpu()) for t in tensors]
        s.expect(same(b, got, to, a, mine, from_), f"get far {theirs} to {ours}")
    _types(bench, far, s)
    _strided(bench, far, s)
    _streams(bench, far, s)
    said = far.peer.explain()
    s.expect("pinned memory" in said, f"explained: {said}")
    _times(far, s)
    far.engine.close()


def _types(bench: Any, far: _Far, s: Any) -> None:
    one, other = Layout("A=37 C=130 float32"), Layout("C=130 A=37 bfloat16")
    src = random_parts(one, 3)
    region, _ = far.here(one, src, "gpu")
    name, there = far.there(other, "gpu")
    there.put(region, deadline=WAIT).wait(WAIT)
    got = bench.child.read(name, other)
    s.expect(same(one, src, [], other, got, []), "float32 -> bfloat16 on a far GPU")


def _strided(bench: Any, far: _Far, s: Any) -> None:
    whole = torch.randn(300, 512, device="cuda")
    layout = Layout("A=200 C=256 float32")
    for where, engine, peer in (
        ("far", far.engine, far.peer), ("here", bench.engine, bench.peer)
    ):  # fmt: skip
        name = bench.name()
        bench.child.share("far" if where == "far" else "there", name, layout)
        there = peer.region(name).wait(WAIT)
        for what, part in (
            ("a part", whole[50:250, 100:356]),
            ("a transposed one", torch.randn(256, 200, device="cuda").T),
        ):
            torch.cuda.synchronize()
            region = engine.share(part, bench.name(), layout)
            there.put(region, deadline=WAIT).wait(WAIT)
            got = np.concatenate(bench.child.read(name, layout)).view(np.float32)
            want = part.cpu().numpy()
            right = np.array_equal(want, got.reshape(200, 256))
            s.expect(right, f"{what} of a tensor, {where}")
            back = torch.zeros(300, 512, device="cuda")
            into = back[50:250, 100:356]
            there.get(engine.share(into, bench.name(), layout), deadline=WAIT).wait(
                WAIT
            )
            torch.cuda.synchronize()
            came = into.cpu().numpy()
            s.expect(np.array_equal(want, came), f"into a part of a tensor, {where}")
            into.zero_()
            rest = int(torch.count_nonzero(back))
            s.expect(not rest, f"{rest} elements beside {what} changed, {where}")


def _streams(bench: Any, far: _Far, s: Any) -> None:
    layout = Layout("N=1048576 float32")
    region, (raw,) = far.here(layout, [np.zeros(4 << 20, np.uint8)], "gpu")
    name, there = far.there(layout, "gpu")
    x, stream = raw.view(torch.float32), torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(200):
            x.add_(1.0)
        put = there.put(region, stream=stream, deadline=WAIT)
    put.wait(WAIT)
    got = np.concatenate(bench.child.read(name, layout)).view(np.float32)
    s.expect(bool((got == 200.0).all()), f"a far put waits for its stream: {got[:3]}")


def _times(far: _Far, s: Any) -> None:
    nbytes = 256 << 20
    for each in (16 << 10, 1 << 20):
        layout = Layout(f"B={nbytes // each} X={each} uint8")
        order = np.random.default_rng(4).permutation(nbytes // each)
        region, _ = far.here(layout, [np.zeros(nbytes, np.uint8)], "gpu")
        host, _ = far.here(layout, [np.zeros(nbytes, np.uint8)], "private")
        _, there = far.there(layout, "gpu")
        for what, begin in (
            ("put gpu to gpu", lambda r=region, t=there, o=order: t[o].put(r.view)),
            ("get gpu to gpu", lambda r=region, t=there, o=order: t[o].get(r.view)),
            ("put host to gpu", lambda r=host, t=there, o=order: t[o].put(r.view)),
        ):
            rate = nbytes / _median(begin) / 1e9
            s.figures[f"{what} over TCP, blocks of {each}"] = {"GB_per_s": rate}
            print(f"  {what} over TCP, blocks of {each >> 10} KB: {rate:.2f} GB/s",
                  flush=True)  # fmt: skip


def _median(begin: Callable[[], Any]) -> float:
    seconds = []
    for _ in range(4):
        begun = time.perf_counter()
        begin().wait(WAIT)
        seconds.append(time.perf_counter() - begun)
    return statistics.median(seconds[1:])


def stage_private(bench: Any, s: Any) -> None:
    """Private memory of a process of this host, and sums of what is mapped."""
    layout = Layout("B=40 X=50000 uint8")
    src = random_parts(layout, 8)
    region, tensors = bench.here(layout, src)
    from_, to = list(range(20)), [3 * n % 40 for n in range(20)]
    for where in ("private", "host", "gpu"):
        name, there = bench.there(layout, where=where)
        x = there[to].put(region[from_], checksum=True, deadline=WAIT)
        x.wait(WAIT)
        got = bench.child.read(name, layout)
        s.expect(same(layout, src, from_, layout, got, to), f"put to {where}: {x.path}")
        s.expect((x.path == "stage") == (where == "private"), f"{where} by {x.path}")
        tensors[0].zero_()
        torch.cuda.synchronize()
        there[to].get(region[from_], checksum=True, deadline=WAIT).wait(WAIT)
        torch.cuda.synchronize()
        mine = [bytes_of(t) for t in tensors]
        s.expect(same(layout, got, to, layout, mine, from_), f"get from {where}")
        tensors[0].copy_(torch.from_numpy(src[0]))
        torch.cuda.synchronize()


def stage_stores(bench: Any, s: Any) -> None:
    """To files and back, in other layouts; a checkpoint of shards."""
    layout, kept = Layout("B=24 T=16 D=128 float16"), "B=24 D=128 T=16 float16"
    src = random_parts(layout, 9)
    region, _ = bench.here(layout, src)
    back, tensors = bench.here(layout, [np.zeros_like(p) for p in src])
    with tempfile.TemporaryDirectory() as folder:
        store = Files(folder)
        shelf = bench.engine.stored(store, "kv", kept)
        shelf[[5, 1, 9]].put(region[[0, 4, 23]], checksum=True).wait(WAIT)
        shelf[[9, 5, 1]].get(back[[2, 3, 4]], checksum=True).wait(WAIT)
        torch.cuda.synchronize()
        mine = [bytes_of(t) for t in tensors]
        right = same(layout, src, [23, 0, 4], layout, mine, [2, 3, 4])
        s.expect(right, "pages to a file and back")
        whole = torch.randn(128, 96, device="cuda")
        torch.cuda.synchronize()
        for rank in range(4):
            rows = whole[32 * rank : 32 * rank + 32]
            about = f"A=128[{32 * rank}:{32 * rank + 32}] C=96 float32"
            save(bench.engine, store, "w", {"w": rows}, {"w": about}, shard=f"{rank}")
        columns = torch.zeros(128, 32, device="cuda")
        about = "A=128 C=96[32:64] float32"
        load(bench.engine, store, "w", {"w": columns}, {"w": about})
        torch.cuda.synchronize()
        s.expect(torch.equal(columns, whole[:, 32:64]), "rows saved, columns loaded")
        store.close()
