"""What single changes to the kernels cost or bring: patched headers, side by side.

    python benchmarks/gpu_experiments.py --ranks 4 --seconds 150 --out DIR
    python benchmarks/gpu_experiments.py --ranks 1 --seconds 60 --out DIR

With several ranks: a process and a GPU each, checked, in graphs, as the tables are
made. With one: four virtual ranks as blocks of one launch on one GPU, so that all is
there but the wires. Every kernel is compiled beforehand, on all cores. All variants of
a case take turns; the least of the medians over repeats is what is printed.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import json
import os
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "benchmarks")]

from gpu_cases import K, M, chosen, worth  # noqa: E402
from gpu_patches import PATCHES, applied  # noqa: E402


def compile_one(job: tuple[str, str, int | None, int, str]) -> str:
    """Compile one variant of one rank (or all) into the disk cache."""
    name, schedule, rank, ranks, patch = job
    try:
        from stretto.compiler.lower import lower
        from stretto.compiler.plan import Schedule
        from stretto.compiler.verify import verify, verify_plan
        from stretto.executors.cuda.codegen import generate
        from stretto.executors.cuda.codegen.compile import compile_kernel
        from stretto.program import algorithms

        plan = lower(
            verify(algorithms.get(name).build(ranks)), Schedule.parse(schedule)
        )
        with applied(patch):
            kernel = generate.kernel_of(verify_plan(plan), rank=rank, dtype="bfloat16")
            compile_kernel(kernel, arch=(9, 0))
    except Exception as e:
        return f"{patch}: {schedule}: {type(e).__name__}: {str(e)[:300]}"
    return ""


def warm(args: argparse.Namespace, patches: list[str]) -> list[str]:
    """Compile everything in parallel; return what went wrong."""
    ranks: list[int | None] = list(range(args.ranks)) if args.ranks > 1 else [None]
    size = args.ranks if args.ranks > 1 else 4
    jobs = {
        (name, schedule, rank, size, "base" if patch.startswith("env:") else patch)
        for name, _, schedules in chosen(args.only, args.ranks)
        for schedule in schedules
        for patch in worth(schedule, patches)
        for rank in ranks
    }
    began = time.monotonic()
    with ProcessPoolExecutor(max(1, (os.cpu_count() or 2) - 2)) as pool:
        wrong = [w for w in pool.map(compile_one, sorted(jobs, key=str)) if w]
    print(f"{len(jobs)} kernels in {time.monotonic() - began:.1f} s", flush=True)
    return wrong


def laid_out(plan: Any, nbytes: int) -> Any:
    """Return where the atoms of a plan lie in vectors of bfloat16."""
    import numpy as np

    from stretto.executors.cuda.flags.regions import fit
    from stretto.program import collectives
    from stretto.program.collectives import Shape

    n, whole = plan.num_ranks, nbytes // 2
    kind = collectives.get(plan.collective)
    shape = Shape(num_ranks=n, split=plan.split, params=plan.params)
    parts = kind.num_parts(shape)
    each = whole if parts == 1 and kind.splits_whole else whole // n
    sizes = kind.symbol_sizes(shape, np.asarray((each,) * parts), 2)
    return fit(plan, sizes, 2)


class Virtual:
    """A plan's ranks as block groups of one launch, called ten times in a graph."""

    def __init__(self, name: str, nbytes: int, schedule: str, patch: str) -> None:
        import numpy as np
        import torch

        from stretto.compiler.lower import lower
        from stretto.compiler.plan import Schedule
        from stretto.compiler.verify import verify, verify_plan
        from stretto.executors.cuda.codegen import abi, generate
        from stretto.executors.cuda.codegen import compile as compiler
        from stretto.executors.cuda.device.driver import open_device
        from stretto.executors.cuda.launching.kernels import enqueue, load
        from stretto.program import algorithms

        n = 4
        plan = lower(verify(algorithms.get(name).build(n)), Schedule.parse(schedule))
        device = open_device(0)
        where = laid_out(plan, nbytes)
        needs = [abi.footprint(plan, where, r) for r in range(n)]
        with applied(patch):
            kernel = generate.kernel_of(verify_plan(plan), rank=None, dtype="bfloat16")
            image = compiler.compile_kernel(kernel, arch=device.arch)
            loaded = load(device, kernel, image)
        half = max(f.packets for f in needs)
        byte = {"dtype": torch.uint8, "device": "cuda"}
        self.memory = {
            "input": [torch.zeros(nbytes + 256, **byte) for _ in range(n)],
            "output": [torch.zeros(nbytes + 256, **byte) for _ in range(n)],
            "packets": [torch.zeros(2 * half + 256, **byte) for _ in range(n)],
            "control": [torch.zeros(abi.control_bytes(n), **byte) for _ in range(n)],
        }
        self.record = torch.zeros(512, dtype=torch.uint8).pin_memory()
        for one in self.memory["input"]:
            one.view(torch.bfloat16).copy_(
                torch.randn(one.numel() // 2, device="cuda", dtype=torch.bfloat16)
            )
        fields: dict[str, Any] = {
            k: [t.data_ptr() for t in v] for k, v in self.memory.items()
        }
        fields |= {"record": self.record.data_ptr(), "deadline_ns": 10**9}
        fields["packet_half"] = half
        packed = [abi.pack(kernel, where, {**fields, "fingerprint": 5})] * n
        self.raw = np.concatenate(packed)
        self.array = (ctypes.c_void_p * 1)(self.raw.ctypes.data)
        where_ = ctypes.addressof(self.array)
        self.calls = 20
        self.graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with applied(patch), torch.cuda.graph(self.graph):
            stream = torch.cuda.current_stream().cuda_stream
            for _ in range(self.calls):
                enqueue(device, loaded, stream, where_)
        self.again = functools.partial(enqueue, device, loaded)
        self.where = where_

    def issue(self, calls: int = 1000) -> tuple[float, float]:
        """Return microseconds of the host a call, and of everything: no graph."""
        import torch

        stream = torch.cuda.current_stream().cuda_stream
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(calls):
            self.again(stream, self.where)
        issued = time.perf_counter() - began
        torch.cuda.synchronize()
        whole = time.perf_counter() - began
        return issued / calls * 1e6, whole / calls * 1e6

    def time(self, replays: int = 10) -> float:
        """Return microseconds a call."""
        import torch

        begin = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        self.graph.replay()
        begin.record()
        for _ in range(replays):
            self.graph.replay()
        end.record()
        torch.cuda.synchronize()
        if int(self.record[0]):
            raise RuntimeError("a launch gave up: see the record")
        return float(begin.elapsed_time(end)) * 1e3 / (replays * self.calls)


def on_one(
    args: argparse.Namespace, patches: list[str], stop_at: float
) -> list[dict[str, Any]]:
    """Measure virtual ranks on one GPU."""
    rows = []
    for name, nbytes, schedules in chosen(args.only, args.ranks):
        for schedule in schedules:
            made: dict[str, Virtual] = {}
            row: dict[str, Any] = {"case": name, "nbytes": nbytes, "how": schedule}
            for patch in patches:
                if time.monotonic() > stop_at:
                    break
                try:
                    made[patch] = Virtual(name, nbytes, schedule, patch)
                except Exception as e:
                    row[f"{patch} failed"] = f"{type(e).__name__}: {e}"[:300]
            samples: dict[str, list[float]] = {p: [] for p in made}
            for _ in range(args.repeats):
                for patch, one in list(made.items()):
                    try:
                        samples[patch].append(one.time())
                    except Exception as e:
                        row[f"{patch} failed"] = f"{type(e).__name__}: {e}"[:300]
                        del made[patch]
            row["us"] = {p: statistics.median(s) for p, s in samples.items() if s}
            if not rows:
                for patch in [p for p in made if p == "base" or p.startswith("env")]:
                    host, whole = made[patch].issue()
                    print(f"eager, {patch}: {whole:.2f} us, {host:.2f} to issue")
            rows.append(row)
            show(row)
    return rows


def on_several(
    args: argparse.Namespace, patches: list[str], stop_at: float
) -> list[dict[str, Any]]:
    """Measure a process and a GPU for every rank."""
    from gpu_peers import PeerSet

    one = PeerSet("ours", args)
    one.ready(60)
    rows: list[dict[str, Any]] = []
    for name, nbytes, schedules in chosen(args.only, args.ranks):
        collective = name.split("/")[0]
        row: dict[str, Any] = {"case": name, "nbytes": nbytes, "us": {}, "bad": []}
        samples: dict[str, list[float]] = {}
        variants = [f"{name}|{s}|{p}" for s in schedules for p in worth(s, patches)]
        for variant in variants:
            if one.dead or time.monotonic() > stop_at:
                break
            how = {"collective": collective, "nbytes": nbytes, "variant": variant}
            said = one.ask("prepare", 20.0, **how)
            if one.dead and one.starts < 4:
                one.start()
                one.ready(60)
            wrong = [a.get("error") or a.get("wrong") for a in said or [{"error": "?"}]]
            if any(wrong):
                row["bad"].append(f"{variant}: {next(w for w in wrong if w)[:300]}")
                if "CUDA" in row["bad"][-1]:  # a GPU may be lost with it
                    one.stop("restarted")
                    samples.clear()
                    if one.starts < 4:
                        one.start()
                        one.ready(60)
            else:
                samples[variant] = []
        for _ in range(args.repeats):
            for variant, found in samples.items():
                how = {"collective": collective, "nbytes": nbytes, "variant": variant}
                timed = one.ask("time", 20.0, replays=10, **how)
                if timed and not any("error" in a for a in timed):
                    found.append(max(a["us"] for a in timed))
        for variant, found in samples.items():
            if found:
                _, how_, patch = variant.split("|")
                row["us"].setdefault(how_, {})[patch] = statistics.median(found)
        one.ask("drop")
        rows.append(row)
        for how_, us in row["us"].items():
            show({"case": name, "nbytes": nbytes, "how": how_, "us": us})
        for line in row["bad"]:
            print("   bad:", line, flush=True)
        write(args, rows)
        if time.monotonic() > stop_at:
            break
    one.stop()
    return rows


def show(row: dict[str, Any]) -> None:
    """Print one line: the base, and everybody's difference from it."""
    us = row["us"]
    base = us.get("base", float("nan"))
    words = row["how"].replace("push packets staged ", "").split(" tile_bytes")[0]
    others = "  ".join(f"{p} {v - base:+.2f}" for p, v in us.items() if p != "base")
    label = f"{row['case']:24} {row['nbytes'] // K:>6}K {words:28}"
    print(f"{label} {base:7.2f}  {others}", flush=True)
    for key in [k for k in row if k.endswith("failed")]:
        print(f"   {key}: {row[key]}", flush=True)


def write(args: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
    """Write what there is."""
    document = {"command": sys.argv, "rows": rows}
    where = Path(args.out) / f"experiments{args.ranks}.json"
    where.write_text(json.dumps(document, indent=1))


def main() -> int:
    """Compile, measure until the time is over, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=150)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", default="")
    parser.add_argument("--patches", default=",".join(PATCHES))
    parser.add_argument("--out", default=os.environ.get("OUT", "."))
    args = parser.parse_args()
    args.largest = 64 * M
    Path(args.out).mkdir(parents=True, exist_ok=True)
    stop_at = time.monotonic() + args.seconds
    patches = [p for p in args.patches.split(",") if p in PATCHES]
    unknown = set(args.patches.split(",")) - set(patches)
    print(f"unknown patches: {sorted(unknown)}" if unknown else "", flush=True)
    for line in warm(args, patches)[:10]:
        print("  ", line, flush=True)
    measure = on_several if args.ranks > 1 else on_one
    write(args, measure(args, patches, stop_at))
    return 0


if __name__ == "__main__":
    sys.exit(main())
