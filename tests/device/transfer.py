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
import sys
import time
import traceback
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "src"), str(Path(__file__).parent)]
os.environ.setdefault("STRETTO_CUDA_SHARE_GPU", "1")

import numpy as np  # noqa: E402
import torch  # noqa: E402
from transfer_far import stage_far, stage_private, stage_stores  # noqa: E402
from transfer_side import (  # noqa: E402
    WAIT,
    Child,
    bytes_of,
    random_parts,
    same,
    serve,
)
from transfer_times import stage_times  # noqa: E402

from stretto.errors import EngineLost, StaleMemory  # noqa: E402
from stretto.transfer import Engine, Layout, deal, kv_layout, plan  # noqa: E402
from stretto.transfer.plans import prove, prove_deal  # noqa: E402

JOB = f"device-{os.getpid()}"


class Stage:
    """Counts what was tried, and keeps what went wrong."""

    def __init__(self, name: str) -> None:
        self.name, self.cases, self.wrong, self.figures = name, 0, [], {}

    def expect(self, right: bool, what: str) -> None:
        self.cases += 1
        if not right:
            self.wrong.append(what)
            print(f"  WRONG {what}", flush=True)


def upload(parts: list[Any]) -> list[Any]:
    return [torch.from_numpy(p).cuda() for p in parts]


class Bench:
    """This process's side."""

    def __init__(self, out: Path, quick: bool) -> None:
        self.quick, self.job = quick, JOB
        self.child = Child(out, __file__, JOB)
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
        mine = [bytes_of(t) for t in tensors]
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
    layout = Layout("B=24 X=524288 uint8")
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
    s.expect("engines" in x.path, f"512 KB pieces go by engines, not {x.path}")


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
            now = [bytes_of(t) for t in tensors]
            got = bench.child.read(name, layout)
            right = same(layout, now, from_, layout, got, to)
            s.expect(right, f"{by}, replay {turn}")


def stage_signals(bench: Bench, s: Stage) -> None:
    """A word gets the number of the call, by both ways, in graphs, for any size."""
    words = Layout("N=4 int64")
    for by in ("kernel", "engines"):
        for nbytes in (16, 4096, 1 << 20, 24 << 20):
            src = random_parts(layout := Layout(f"N={nbytes} uint8"), nbytes)
            region, _ = bench.here(layout, src)
            name, there = bench.there(layout)
            flag, flags = bench.there(words)
            put = there.view.prepare_put(region.view, by=by, signal=flags[2:3])
            stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
            put(stream)
            with torch.cuda.graph(graph, stream=stream):
                put(torch.cuda.current_stream())
            for turn in range(2, 4):
                graph.replay()
                torch.cuda.synchronize()
                found = bench.child.read(flag, words)[0].view(np.int64)
                s.expect(found[2] == turn and found[1] == found[3] == found[0],
                         f"{by}, {nbytes} bytes: call {turn} is {found}")  # fmt: skip
            got = bench.child.read(name, layout)[0]
            s.expect(np.array_equal(got, src[0]), f"{by}, {nbytes} bytes")


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
    mine = [bytes_of(t) for t in tensors]
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


STAGES = {
    "layouts": stage_layouts,
    "types": stage_types,
    "engines": stage_engines,
    "streams": stage_streams,
    "graphs": stage_graphs,
    "signals": stage_signals,
    "reshards": stage_reshards,
    "host": stage_host,
    "times": stage_times,
    "private": stage_private,
    "far": stage_far,
    "stores": stage_stores,
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
        serve(sys.argv[2])
    else:
        sys.exit(main())
