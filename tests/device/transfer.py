"""Transfers on a GPU that two processes share: right, in streams and graphs, and fast.

    python tests/device/transfer.py --out DIR [--seconds S] [--only WORD,WORD] [--quick]

A child serves memory and says on a pipe what lies in it; this process puts and gets. So
what is compared was read by the process that owns it, with its own copy. Every stage is
counted; what is wrong is listed, and the exit status says whether anything was. It ends
within `--seconds`. Times are medians of events on the stream, beside a plain copy's.
"""

# ruff: noqa: T201  (a program: it prints its report)

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "src")]
os.environ.setdefault("STRETTO_CUDA_SHARE_GPU", "1")

import numpy as np  # noqa: E402
import torch  # noqa: E402

from stretto.errors import EngineLost, StaleMemory, StrettoError  # noqa: E402
from stretto.transfer import Engine, Layout, deal, kv_layout, plan  # noqa: E402
from stretto.transfer.copying.convert import converted  # noqa: E402
from stretto.transfer.plans import prove, prove_deal  # noqa: E402

WAIT = 20.0
JOB = f"device-{os.getpid()}"


# The child.


def serve() -> None:
    """Share what the parent asks for, and say what lies there."""
    job = sys.argv[2]
    engines: dict[str, Engine] = {}
    tensors: dict[str, Any] = {}
    leases: dict[str, Any] = {}
    torch.cuda.init()
    for line in sys.stdin:
        said = json.loads(line)
        answer: Any = True
        try:
            match said["do"]:
                case "engine":
                    engines[said["name"]] = Engine(said["name"], job=job)
                case "share":
                    engine = engines[said["engine"]]
                    made = [
                        _tensor(engine, said["where"], n, said.get("fill", 0))
                        for n in said["nbytes"]
                    ]
                    name = said["name"]
                    tensors[name] = made
                    given = made if said["several"] else made[0]
                    engine.share(given, name, said["layout"])
                case "read":
                    torch.cuda.synchronize()
                    parts = [_bytes(t) for t in tensors[said["name"]]]
                    np.save(said["file"], np.concatenate(parts))
                case "write":
                    data = np.load(said["file"])
                    at = 0
                    for t in tensors[said["name"]]:
                        _store(t, data[at : at + t.nbytes])
                        at += t.nbytes
                case "lease":
                    leases["it"] = engines[said["engine"]].lease()
                    answer = leases["it"].token.hex()
                case "end":
                    leases["it"].end()
                case "notified":
                    engine = engines[said["engine"]]
                    engine.notified(bytes.fromhex(said["tag"])).wait(WAIT)
                case "unshare":
                    tensors.pop(said["name"])
        except StrettoError as e:
            answer = f"{type(e).__name__}: {e}"
        print(json.dumps(answer), flush=True)


def _tensor(engine: Engine, where: str, nbytes: int, fill: int) -> Any:
    if where == "gpu":
        return torch.full((nbytes,), fill, dtype=torch.uint8, device="cuda")
    made = engine.arena(nbytes)
    made[:] = fill
    return made


def _bytes(t: Any) -> Any:
    return t.cpu().numpy() if isinstance(t, torch.Tensor) else t.copy()


def _store(t: Any, data: Any) -> None:
    if isinstance(t, torch.Tensor):
        t.copy_(torch.from_numpy(data))
        torch.cuda.synchronize()
    else:
        t[:] = data


class Child:
    """The process at the other end."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--serve", JOB],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def ask(self, **said: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(said) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the child ended while it was asked to {said}")
        answer = json.loads(line)
        if isinstance(answer, str) and "Error" in answer.split(":")[0]:
            raise RuntimeError(f"the child answers {answer}")
        return answer

    def share(
        self, engine: str, name: str, layout: Layout, *, where: str = "gpu",
        fill: int = 0,
    ) -> None:  # fmt: skip
        sizes = [layout.part_bytes] * layout.num_parts
        self.ask(
            do="share", engine=engine, name=name, layout=str(layout), nbytes=sizes,
            where=where, several=bool(layout.parts), fill=fill,
        )  # fmt: skip

    def read(self, name: str, layout: Layout) -> list[Any]:
        path = self._out / "read.npy"
        self.ask(do="read", name=name, file=str(path))
        return list(np.load(path).reshape(layout.num_parts, -1))

    def write(self, name: str, parts: list[Any]) -> None:
        path = self._out / "write.npy"
        np.save(path, np.concatenate(parts))
        self.ask(do="write", name=name, file=str(path))

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(10)


# What is expected, by the definition of the layouts, element by element in NumPy.


def logical(layout: Layout, parts: list[Any], pages: list[int]) -> dict[str, Any]:
    """Return what lies where in the whole tensor: numbers of elements, and values."""
    axes = {a.name: a for a in (*layout.parts, *layout.axes)}
    names = sorted(n for n in axes if n not in ("B", "T"))
    shape = tuple(a.size for a in (*layout.parts, *layout.axes))
    dense = np.stack(parts)
    strides = tuple(a.stride for a in layout.axes)
    per_part = [
        np.lib.stride_tricks.as_strided(
            p[: layout.part_bytes].view(layout.storage)
            if layout.part_bytes % layout.itemsize == 0
            else p,
            tuple(a.size for a in layout.axes),
            strides,
        )
        for p in dense
    ]
    values = np.stack(per_part).reshape(shape)
    order = [a.name for a in (*layout.parts, *layout.axes)]
    if "B" in axes:
        values = np.take(values, pages, axis=order.index("B"))
    lead = [n for n in ("B", "T") if n in axes]
    moved = np.transpose(values, [order.index(n) for n in (*lead, *names)])
    tokens = int(np.prod(moved.shape[: len(lead)], dtype=int)) if lead else 1
    flat = moved.reshape(tokens, *moved.shape[len(lead) :])
    ranges = [range(axes[n].start, axes[n].stop) for n in names]
    return {"names": names, "ranges": ranges, "values": flat}


def same(a: Layout, src: list[Any], from_: list[int], b: Layout, dst: list[Any],
         to: list[int]) -> bool:  # fmt: skip
    """Return whether what both hold is alike, converted where types differ."""
    x, y = logical(a, src, from_), logical(b, dst, to)
    cuts_x: list[Any] = [slice(None)]
    cuts_y: list[Any] = [slice(None)]
    for one, other in zip(x["ranges"], y["ranges"], strict=True):
        low, high = max(one.start, other.start), min(one.stop, other.stop)
        cuts_x.append(slice(low - one.start, high - one.start))
        cuts_y.append(slice(low - other.start, high - other.start))
    want = np.ascontiguousarray(x["values"][tuple(cuts_x)])
    got = np.ascontiguousarray(y["values"][tuple(cuts_y)])
    want = np.ascontiguousarray(converted(want, a.dtype, b.dtype))
    return want.tobytes() == got.tobytes()


class Stage:
    """Counts what was tried, and keeps what went wrong."""

    def __init__(self, name: str) -> None:
        self.name, self.cases, self.wrong, self.figures = name, 0, [], {}

    def expect(self, right: bool, what: str) -> None:
        self.cases += 1
        if not right:
            self.wrong.append(what)
            print(f"  WRONG {what}", flush=True)


def random_parts(layout: Layout, seed: int) -> list[Any]:
    """Return random tensors; of floats, ones without NaN."""
    rng = np.random.default_rng(seed)
    parts = []
    for _ in range(layout.num_parts):
        size = layout.part_bytes
        if layout.dtype == "float32":
            raw = rng.standard_normal(size // 4).astype(np.float32).view(np.uint8)
        else:
            raw = rng.integers(0, 120, size, dtype=np.uint8)
        parts.append(raw)
    return parts


def upload(parts: list[Any]) -> list[Any]:
    return [torch.from_numpy(p).cuda() for p in parts]


class Bench:
    """This process's side."""

    def __init__(self, out: Path, quick: bool) -> None:
        self.quick = quick
        self.child = Child(out)
        self.child.ask(do="engine", name="there")
        self.engine = Engine("here", job=JOB)
        self.peer = self.engine.connect("there").wait(WAIT)
        self._number = 0

    def name(self) -> str:
        self._number += 1
        return f"m{self._number}"

    def there(self, layout: Layout, *, where: str = "gpu") -> tuple[str, Any]:
        name = self.name()
        self.child.share("there", name, layout, where=where, fill=0xEE)
        return name, self.peer.region(name).wait(WAIT)

    def here(self, layout: Layout, parts: list[Any], *, where: str = "gpu") -> Any:
        if where == "gpu":
            tensors = upload(parts)
        else:
            tensors = []
            for p in parts:
                arena = self.engine.arena(len(p))
                arena[:] = p
                tensors.append(arena)
        given = tensors if layout.parts else tensors[0]
        region = self.engine.share(given, self.name(), layout)
        torch.cuda.synchronize()
        return region, tensors


def caches(quick: bool) -> list[tuple[Layout, Layout]]:
    """Return pairs of caches: orders, block sizes, shards, types."""
    sizes = {"layers": 2, "heads": 4, "dim": 64}
    made = []
    names = ("vllm/flash", "vllm/flashinfer", "vllm/cross_hnd", "sglang/mha")
    for a in names:
        for b in names[: 2 if quick else 4]:
            one = kv_layout(a, blocks=12, block=16, dtype="bfloat16", **sizes)
            other = kv_layout(b, blocks=12, block=16, dtype="bfloat16", **sizes)
            made.append((one, other))
    big = kv_layout("vllm/flash", blocks=4, block=64, **sizes)
    small = kv_layout("vllm/flashinfer", blocks=16, block=16, **sizes)
    made += [(big, small), (small, big)]
    for rank in range(2):
        part = kv_layout("vllm/flash", blocks=12, block=16, tp=(rank, 2), **sizes)
        made += [(part, made[0][1]), (made[0][0], part)]
    odd = {"layers": 1, "heads": 3, "dim": 5}
    made.append((kv_layout("vllm/flash", blocks=9, block=3, **odd),
                 kv_layout("vllm/flashinfer", blocks=9, block=3, **odd)))  # fmt: skip
    mla = {"layers": 3, "dim": 576}
    made.append((kv_layout("vllm/mla", blocks=8, block=64, **mla),
                 kv_layout("sglang/mla", blocks=8, block=64, **mla)))  # fmt: skip
    return made


def stage_layouts(bench: Bench, s: Stage) -> None:
    """Put and get between caches of other layouts, by kernel."""
    for nth, (a, b) in enumerate(caches(bench.quick)):
        prove(plan(a, b))
        src = random_parts(a, nth)
        region, _ = bench.here(a, src)
        rng = np.random.default_rng(nth)
        tokens = min(a.num_pages * a.page_tokens, b.num_pages * b.page_tokens) // 2
        tokens -= tokens % max(a.page_tokens, b.page_tokens)
        from_ = rng.permutation(a.num_pages)[: tokens // a.page_tokens].tolist()
        to = rng.permutation(b.num_pages)[: tokens // b.page_tokens].tolist()
        name, there = bench.there(b)
        x = there[to].put(region[from_], notify=b"landed", deadline=WAIT)
        x.wait(WAIT)
        bench.child.ask(do="notified", engine="there", tag=b"landed".hex())
        got = bench.child.read(name, b)
        s.expect(same(a, src, from_, b, got, to), f"put {a} -> {b} by {x.path}")
        back, tensors = bench.here(a, [np.zeros_like(p) for p in src])
        there[to].get(back[from_], deadline=WAIT).wait(WAIT)
        torch.cuda.synchronize()
        mine = [_bytes(t) for t in tensors]
        s.expect(same(b, got, to, a, mine, from_), f"get {b} -> {a}")


def stage_types(bench: Bench, s: Stage) -> None:
    """Convert while scattering, rounded as on a CPU."""
    types = ("float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
    for a in types:
        for b in types:
            if a == b:
                continue
            one, other = Layout(f"A=37 C=130 {a}"), Layout(f"C=130 A=37 {b}")
            src = random_parts(one, 3)
            region, _ = bench.here(one, src)
            name, there = bench.there(other)
            there.put(region, deadline=WAIT).wait(WAIT)
            got = bench.child.read(name, other)
            s.expect(same(one, src, [], other, got, []), f"{a} -> {b}")


def stage_engines(bench: Bench, s: Stage) -> None:
    """Large pieces by copy engines, as one batch; the same bytes as by a kernel."""
    layout = Layout("B=24 X=131072 uint8")
    src = random_parts(layout, 5)
    region, _ = bench.here(layout, src)
    for by in ("engines", "kernel", ""):
        from_, to = [3, 4, 5, 20, 1], [0, 9, 10, 11, 23]
        name, there = bench.there(layout)
        stream = torch.cuda.Stream()
        x = there[to].put(region[from_], by=by, stream=stream, deadline=WAIT)
        x.wait(WAIT)
        right = same(layout, src, from_, layout, bench.child.read(name, layout), to)
        s.expect(right and (by in x.path), f"by {by or 'choice'}: {x.path}")
    s.expect("engines" in x.path, f"128 KB pieces go by engines, not {x.path}")


def stage_streams(bench: Bench, s: Stage) -> None:
    """What a stream was given before is done before; layer by layer."""
    layout = Layout("L=8 | N=1048576 float32")
    region, tensors = bench.here(layout, [np.zeros(4 << 20, np.uint8)] * 8)
    name, there = bench.there(layout)
    stream = torch.cuda.Stream()
    started = []
    floats = [t.view(torch.float32) for t in tensors]
    with torch.cuda.stream(stream):
        for layer in range(8):
            x = floats[layer]
            for _ in range(20):
                x.add_(1.0).mul_(1.5).sub_(0.25)
            put = there.layer(layer).put(
                region.layer(layer), stream=stream, notify=b"layer%d" % layer,
                deadline=WAIT,
            )  # fmt: skip
            started.append(put)
    for layer, put in enumerate(started):
        put.wait(WAIT)
        tag = (b"layer%d" % layer).hex()
        bench.child.ask(do="notified", engine="there", tag=tag)
    got = bench.child.read(name, layout)
    for layer in range(8):
        want = floats[layer].cpu().numpy().view(np.uint8)
        s.expect(bool(np.array_equal(want, got[layer])), f"layer {layer}")


def stage_graphs(bench: Bench, s: Stage) -> None:
    """A captured put is replayed, on what the source holds then."""
    layout = kv_layout("vllm/flash", layers=1, blocks=32, block=16, heads=4, dim=64)
    src = random_parts(layout, 8)
    region, tensors = bench.here(layout, src)
    from_, to = list(range(0, 32, 2)), list(range(16))
    for by in ("kernel", "engines"):
        name, there = bench.there(layout)
        put = there[to].prepare_put(region[from_], by=by)
        stream = torch.cuda.Stream()
        graph = torch.cuda.CUDAGraph()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.graph(graph, stream=stream):
            tensors[0].add_(1)
            put(torch.cuda.current_stream())
        for turn in range(3):
            graph.replay()
            torch.cuda.synchronize()
            now = [_bytes(t) for t in tensors]
            got = bench.child.read(name, layout)
            right = same(layout, now, from_, layout, got, to)
            s.expect(right, f"{by}, replay {turn}")


def stage_reshards(bench: Bench, s: Stage) -> None:
    """2 ranks to 1, 1 to 2, 2 to 2 of another order: every element, bit for bit."""
    sizes = {"layers": 3, "heads": 4, "dim": 64}
    for n, m, b in ((2, 1, "vllm/flash"), (1, 2, "sglang/mha"), (2, 2, "vllm/cross")):
        srcs = [kv_layout("vllm/flash", blocks=10, block=16, tp=(r, n), **sizes)
                for r in range(n)]  # fmt: skip
        dsts = [kv_layout(b, blocks=5, block=32, tp=(r, m), **sizes) for r in range(m)]
        dealt = deal(srcs, dsts)
        prove_deal(dealt)
        held = [random_parts(x, 20 + r) for r, x in enumerate(srcs)]
        regions = [bench.here(x, p)[0] for x, p in zip(srcs, held, strict=True)]
        names = [bench.there(x) for x in dsts]
        from_, to = [7, 2, 9, 4], [3, 0]
        puts = [
            names[d][1][to].only(**{a: (x, y) for a, x, y in p.only}).put(
                regions[i][from_], deadline=WAIT
            )
            for (i, d), plans in dealt.plans.items()
            for p in plans
        ]  # fmt: skip
        bench.engine.batch(*puts)
        for put in puts:
            put.wait(WAIT)
        for d, dst in enumerate(dsts):
            got = bench.child.read(names[d][0], dst)
            for i, src in enumerate(srcs):
                if (i, d) in dealt.plans:
                    right = same(src, held[i], from_, dst, got, to)
                    s.expect(right, f"{n} -> {m}, {b}: rank {i} to rank {d}")


def stage_host(bench: Bench, s: Stage) -> None:
    """Between a GPU and an arena of a peer, both ways, scattered."""
    a = kv_layout("vllm/flash", layers=2, blocks=16, block=16, heads=4, dim=64)
    b = kv_layout("vllm/cross", layers=2, blocks=16, block=16, heads=4, dim=64)
    src = random_parts(a, 31)
    region, _ = bench.here(a, src)
    name, there = bench.there(b, where="host")
    from_, to = [1, 3, 5, 7], [0, 2, 4, 15]
    there[to].put(region[from_], deadline=WAIT).wait(WAIT)
    got = bench.child.read(name, b)
    s.expect(same(a, src, from_, b, got, to), "GPU to a peer's arena")
    back, tensors = bench.here(a, [np.zeros_like(p) for p in src])
    there[to].get(back[from_], deadline=WAIT).wait(WAIT)
    torch.cuda.synchronize()
    mine = [_bytes(t) for t in tensors]
    s.expect(same(b, got, to, a, mine, from_), "a peer's arena to GPU")
    arena, held = bench.here(b, random_parts(b, 32), where="host")
    name, there = bench.there(a)
    there[to].put(arena[from_], deadline=WAIT).wait(WAIT)
    got = bench.child.read(name, a)
    mine = [t.copy() for t in held]
    s.expect(same(b, mine, from_, a, got, to), "our arena to a peer's GPU")


def stage_faults(bench: Bench, s: Stage) -> None:
    """An ended lease is refused; a peer that dies is named, in time."""
    layout = Layout("B=16 X=65536 uint8")
    region, _ = bench.here(layout, random_parts(layout, 1))
    name, there = bench.there(layout)
    token = bytes.fromhex(bench.child.ask(do="lease", engine="there"))
    there[[0]].put(region[[1]], lease=token, deadline=WAIT).wait(WAIT)
    bench.child.ask(do="end")
    before = bench.child.read(name, layout)
    try:
        there[[2]].put(region[[1]], lease=token, deadline=WAIT).wait(WAIT)
        s.expect(False, "a put under an ended lease was not refused")
    except StaleMemory:
        after = bench.child.read(name, layout)
        s.expect(all(map(np.array_equal, before, after)), "a stale put changed memory")
    bench.child.kill()
    begun = time.monotonic()
    try:
        while time.monotonic() < begun + 5:
            there[[2]].put(region[[1]], deadline=WAIT).wait(WAIT)
        s.expect(False, "a dead peer was not noticed")
    except EngineLost as e:
        took = time.monotonic() - begun
        s.expect(took < 1.0 and e.peer == "there", f"a dead peer: {took:.2f} s, {e}")


def timed(enqueue: Callable[[], None], rounds: int) -> float:
    """Return the median of milliseconds on the stream, after some to warm up."""
    for _ in range(3):
        enqueue()
    torch.cuda.synchronize()
    times = []
    for _ in range(rounds):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        enqueue()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def stage_times(bench: Bench, s: Stage) -> None:
    """Small blocks at memory's speed, and the share of the link that blocks get."""
    rng = np.random.default_rng(2)
    stream = torch.cuda.Stream()
    torch.cuda.set_stream(stream)
    for count, nbytes, goal in ((40_000, 8192, 0.3), (82_000, 4096, 0.35)):
        layout = Layout(f"B={count} X={nbytes} uint8")
        source = torch.zeros(count * nbytes, dtype=torch.uint8, device="cuda")
        region = bench.engine.share(source, bench.name(), layout)
        dense = Layout(f"B={count} X={nbytes} uint8")
        _, there = bench.there(dense)
        order = rng.permutation(count)
        whole = np.arange(count)
        copy = torch.empty_like(source)
        plain = timed(lambda c=copy, x=source: c.copy_(x), 20)
        for what, from_, to in (
            ("gather", order, whole), ("scatter", whole, order), ("both", order, order)
        ):  # fmt: skip
            put = there[to].prepare_put(region[from_], by="kernel")
            ms = timed(lambda put=put: put(stream), 20)
            rate = 2 * count * nbytes / ms / 1e6
            key = f"{what} {count} x {nbytes}"
            s.figures[key] = {"ms": ms, "GB_per_s_read_and_written": rate,
                              "plain_copy_ms": plain, "goal_ms": goal}  # fmt: skip
            said = "yes" if ms <= goal else "NO"
            print(f"  {key}: {ms:.3f} ms ({rate:.0f} GB/s read and written); plain "
                  f"copy {plain:.3f} ms; want {goal}: {said}", flush=True)  # fmt: skip
        begun = time.perf_counter()
        there[order].put(region[whole], deadline=WAIT).wait(WAIT)
        took = 1e3 * (time.perf_counter() - begun)
        s.figures[f"whole call {count} x {nbytes}"] = {"ms": took}
        print(f"  the whole call, planned anew: {took:.2f} ms", flush=True)
        del copy, region, source
    _link_times(bench, s, stream)


def _link_times(bench: Bench, s: Stage, stream: Any) -> None:
    nbytes = 256 << 20
    pinned = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
    device = torch.empty(nbytes, dtype=torch.uint8, device="cuda")
    best = {
        "h2d": timed(lambda: device.copy_(pinned, non_blocking=True), 10),
        "d2h": timed(lambda: pinned.copy_(device, non_blocking=True), 10),
    }
    for each in (16 << 10, 128 << 10, 2 << 20):
        layout = Layout(f"B={nbytes // each} X={each} uint8")
        gpu = bench.engine.share(device, bench.name(), layout)
        _, host = bench.there(layout, where="host")
        order = np.random.default_rng(4).permutation(nbytes // each)
        for way, move in (
            ("h2d", host[order].prepare_get(gpu.view)),
            ("d2h", host[order].prepare_put(gpu.view)),
        ):
            ms = timed(lambda move=move: move(stream), 10)
            share = best[way] / ms
            s.figures[f"{way} in blocks of {each}"] = {
                "ms": ms, "pinned_copy_ms": best[way], "share": share, "by": move.by,
            }  # fmt: skip
            said = "yes" if share >= 0.9 else "NO"
            print(
                f"  {way}, blocks of {each >> 10} KB by {move.by}: {ms:.2f} ms, "
                f"{share:.2f} of a pinned copy's rate; want 0.9: {said}",
                flush=True,
            )


STAGES = {
    "layouts": stage_layouts,
    "types": stage_types,
    "engines": stage_engines,
    "streams": stage_streams,
    "graphs": stage_graphs,
    "reshards": stage_reshards,
    "host": stage_host,
    "times": stage_times,
    "faults": stage_faults,  # the last: the child does not live through it
}


def main() -> int:
    """Run the stages that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=240.0)
    parser.add_argument("--only", default="")
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    faulthandler.dump_traceback_later(given.seconds, exit=True)
    begun = time.monotonic()
    bench = Bench(given.out, given.quick)
    wanted = [w for w in given.only.split(",") if w] or list(STAGES)
    found = []
    for name in STAGES:
        if name not in wanted:
            continue
        stage = Stage(name)
        print(f"{name} ({time.monotonic() - begun:.0f} s)", flush=True)
        try:
            STAGES[name](bench, stage)
            torch.cuda.synchronize()
        except Exception:
            stage.wrong.append(traceback.format_exc())
            print(traceback.format_exc(), flush=True)
        found.append(stage)
        print(f"  {stage.cases} cases, {len(stage.wrong)} wrong", flush=True)
        report = {x.name: {"cases": x.cases, "wrong": x.wrong, "figures": x.figures}
                  for x in found}  # fmt: skip
        report["device"] = torch.cuda.get_device_name()
        text = json.dumps(report, indent=1)
        (given.out / "transfer.json").write_text(text, encoding="utf-8")
    bench.child.kill()
    wrong = sum(len(x.wrong) for x in found)
    print(f"{sum(x.cases for x in found)} cases, {wrong} wrong, "
          f"{time.monotonic() - begun:.0f} s", flush=True)  # fmt: skip
    faulthandler.cancel_dump_traceback_later()
    os._exit(int(bool(wrong)))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve()
    else:
        sys.exit(main())
