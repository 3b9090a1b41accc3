"""Every rank of a collective on one GPU, as block groups of one launch.

    python tests/device/virtual.py --out DIR [--only WORDS] [--limit N] [--seconds S]

Runs every shipped algorithm under every protocol on odd counts, with poisoned outputs,
and compares with the reference interpreter bit for bit. One launch holds all ranks, so
compute-sanitizer can watch; more than four ranks are a launch each, on streams of their
own, since one text of all is long to compile. Each case runs in a worker that may die;
the next goes on. What is not compiled when two thirds of the time are over is left out.
"""

# ruff: noqa: T201  (a program: it prints its report)

from __future__ import annotations

import argparse
import ctypes
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "src"), str(Path(__file__).parent)]

import numpy as np  # noqa: E402
from catalogue import (  # noqa: E402
    COUNTS,
    Case,
    cases,
    compile_all,
    kernel_of,
    parts,
    wanted,
)

from stretto import collectives  # noqa: E402
from stretto.collectives import Operator, Shape, storage  # noqa: E402
from stretto.executors.cuda import abi  # noqa: E402
from stretto.executors.cuda.compile import compile_kernel  # noqa: E402
from stretto.executors.cuda.driver import api, ask, open_device  # noqa: E402
from stretto.executors.cuda.launch import enqueue, load  # noqa: E402
from stretto.executors.cuda.regions import fit  # noqa: E402
from stretto.executors.cuda.watch import explain  # noqa: E402
from stretto.testing import (  # noqa: E402
    draw,
    input_counts,
    interpret,
    output_counts,
)


class Memory:
    """Device allocations of exact size, freed together."""

    def __init__(self) -> None:
        self._all: list[int] = []

    def new(self, nbytes: int, fill: int = 0) -> int:
        """Return an allocation filled with one byte."""
        start = int(ask("cuMemAlloc", max(nbytes, 1)))
        self._all.append(start)
        ask("cuMemsetD8", start, fill, max(nbytes, 1))
        return start

    def free(self) -> None:
        """Free everything."""
        for start in self._all:
            ask("cuMemFree", start)
        self._all.clear()


class Virtual:
    """One case on the GPU: memory of every rank, and a kernel for all of them."""

    def __init__(self, case: Case, deadline_s: float = 2.0) -> None:
        self.case, self.deadline_ns = case, int(deadline_s * 1e9)
        self.device = open_device(0)
        self.plan = case.plan()
        self.loaded = []
        for rank in parts(case):
            kernel = kernel_of(case, self.plan, rank)
            image = compile_kernel(kernel, arch=self.device.arch)
            self.loaded.append(load(self.device, kernel, image))
        apart = int(api().CUstream_flags.CU_STREAM_NON_BLOCKING)
        self.streams = [ask("cuStreamCreate", apart) for _ in self.loaded]
        self.memory = Memory()
        n = self.plan.num_ranks
        self.control = [self.memory.new(abi.control_bytes(n)) for _ in range(n)]
        self.record = np.zeros(1, abi.RECORD)
        flags = api().CU_MEMHOSTALLOC_PORTABLE | api().CU_MEMHOSTALLOC_DEVICEMAP
        self._host = int(ask("cuMemHostAlloc", 4096, flags))
        ctypes.memset(self._host, 0, 4096)
        self._record = int(ask("cuMemHostGetDevicePointer", self._host, 0))

    def run(self, count: int, seed: int, launches: int = 3) -> str:
        """Run on fresh data several times; return what is wrong, or nothing."""
        case, plan, n = self.case, self.plan, self.plan.num_ranks
        program = case.program()
        kind = collectives.get(plan.collective)
        shape = Shape(num_ranks=n, split=plan.split, params=plan.params)
        counts = [count] * kind.num_parts(shape)
        itemsize = storage(case.dtype).itemsize
        sizes = kind.symbol_sizes(shape, np.asarray(counts), itemsize)
        where = fit(plan, sizes, itemsize)
        needs = [abi.footprint(plan, where, r) for r in range(n)]
        op = Operator(case.op)
        rng = np.random.default_rng(seed)
        data = Memory()
        try:
            stage = [data.new(2 * f.stage, 0x5A) for f in needs]
            packets = [data.new(2 * (f.packets + f.lines)) for f in needs]
            half = max(f.stage for f in needs)
            packet_half = max(f.packets + f.lines for f in needs)
            assert len({f.stage for f in needs}) <= 2, "halves are one size for all"
            stage = [data.new(2 * half, 0x5A) for _ in needs]
            packets = [data.new(2 * packet_half) for _ in needs]
            n_in, n_out = input_counts(program, counts), output_counts(program, counts)
            inputs = [data.new(c * itemsize) for c in n_in]
            outputs = [data.new(c * itemsize, 0xA5) for c in n_out]
            buffers = {
                "input": inputs, "output": outputs, "stage": stage,
                "packets": packets, "control": self.control,
            }  # fmt: skip
            records = [
                abi.pack(
                    self.loaded[r % len(self.loaded)].kernel,
                    where,
                    {
                        **buffers,
                        "record": self._record,
                        "deadline_ns": self.deadline_ns,
                        "fingerprint": abi.fingerprint(
                            plan, case.dtype, case.op, counts
                        ),
                        "stage_unit": needs[0].stage_unit,
                        "packet_unit": needs[0].packet_unit,
                        "stage_half": half,
                        "packet_half": packet_half,
                    },
                )
                for r in range(n)
            ]
            packed = self._join(records)
            for launch in range(launches):
                given = [draw(rng, c, case.dtype, op) for c in n_in]
                for start, values in zip(inputs, given, strict=True):
                    if values.size:
                        raw = np.ascontiguousarray(values)
                        ask("cuMemcpyHtoD", start, raw.ctypes.data, raw.nbytes)
                want = interpret(program, given, dtype=case.dtype, op=op, counts=counts)
                wrong = self._launch(packed) or self._compare(outputs, want)
                if wrong:
                    return f"count={count} launch={launch}: {wrong}"
            return ""
        finally:
            ask("cuCtxSynchronize")
            data.free()

    def _join(self, records: list[Any]) -> list[Any]:
        """Return each launch's parameters: of a rank, or of all one after another."""
        if len(self.loaded) > 1:
            return records
        return [np.concatenate(records)]

    def _launch(self, packed: list[Any]) -> str:
        ask("cuCtxSynchronize")  # what was filled is there: our streams wait for none
        kept = []
        for loaded, raw, stream in zip(self.loaded, packed, self.streams, strict=True):
            array = (ctypes.c_void_p * 1)(raw.ctypes.data)
            kept.append(array)
            enqueue(self.device, loaded, stream, ctypes.addressof(array))
        ask("cuCtxSynchronize")
        record = np.frombuffer(
            ctypes.string_at(self._host, abi.RECORD.itemsize), abi.RECORD
        )[0]
        if int(record["state"]) == 0:
            return ""
        return explain(record, {int(record["fingerprint"]): self.plan})[1]

    def _compare(self, outputs: list[int], want: list[Any]) -> str:
        for rank, (start, values) in enumerate(zip(outputs, want, strict=True)):
            got = np.empty_like(values)
            if not got.size:
                continue
            ask("cuMemcpyDtoH", got.ctypes.data, start, got.nbytes)
            same = got.view(np.uint8) == np.ascontiguousarray(values).view(np.uint8)
            ask("cuMemsetD8", start, 0xA5, got.nbytes)
            if not same.all():
                bad = np.flatnonzero(~same.reshape(got.size, -1).all(axis=1))
                first = int(bad[0])
                return (
                    f"rank {rank}: {bad.size} of {got.size} differ, first [{first}]: "
                    f"got {got[first]!r}, want {values[first]!r}"
                )
        return ""

    def close(self) -> None:
        """Free everything."""
        self.memory.free()
        ask("cuMemFreeHost", self._host)
        for loaded, stream in zip(self.loaded, self.streams, strict=True):
            ask("cuStreamDestroy", stream)
            ask("cuModuleUnload", loaded.module)


def work(chosen: list[Case], args: argparse.Namespace) -> None:
    """Run cases from one on, a line of the log before and after each."""
    start, stop_at = args.worker, time.monotonic() + args.seconds
    log, counts = Path(args.out) / "virtual.log", args.counts.split(",")
    skip = set(json.loads((log.parent / "skip.json").read_text()))
    with log.open("a") as out:
        for index in range(start, len(chosen)):
            if index in skip:
                continue
            if time.monotonic() > stop_at:
                return
            case = chosen[index]
            print(json.dumps({"begin": index}), file=out, flush=True)
            began = time.monotonic()
            try:
                machine = Virtual(case, args.deadline)
                wrong = ""
                for count in map(int, counts):
                    wrong = wrong or machine.run(count, seed=index)
                machine.close()
            except Exception as e:
                wrong = f"{type(e).__name__}: {e}"
            poisoned = wrong.startswith("DeviceError")  # nothing works after some
            said = {
                "end": index,
                "wrong": wrong,
                "seconds": round(time.monotonic() - began, 3),
            }
            print(json.dumps(said), file=out, flush=True)
            if poisoned:
                sys.exit(3)


def supervise(args: argparse.Namespace, chosen: list[Case]) -> list[dict[str, Any]]:
    """Run the worker again after every case that ends it; return all results."""
    log = Path(args.out) / "virtual.log"
    log.write_text("")
    results: dict[int, dict[str, Any]] = {}
    start, stop_at = 0, time.monotonic() + args.seconds
    while start < len(chosen) and time.monotonic() < stop_at:
        left = stop_at - time.monotonic()
        command = [*args.prefix.split(), sys.executable, __file__, "--worker"]
        command += [str(start), "--out", args.out, "--seconds", str(left)]
        command += ["--only", args.only, "--limit", str(args.limit)]
        command += ["--ranks", args.ranks, "--counts", args.counts]
        command += ["--deadline", str(args.deadline)]
        with (Path(args.out) / "virtual.err").open("a") as err:
            try:
                code = subprocess.run(
                    command,
                    stderr=err,
                    stdout=err,
                    timeout=left + 20,
                    check=False,
                    env={**os.environ, "CUDA_DEVICE_MAX_CONNECTIONS": "32"},
                ).returncode
            except subprocess.TimeoutExpired:
                code = -1
        began = -1
        for line in log.read_text().splitlines():
            said = json.loads(line)
            if "begin" in said:
                began = said["begin"]
            else:
                results[said["end"]] = said
        if began >= 0 and began not in results:
            results[began] = {"end": began, "wrong": f"the worker died, {code=}"}
        if code == 0 or began < start:
            break
        start = began + 1
    return [{**asdict(chosen[i]), **said} for i, said in sorted(results.items())]


def options() -> argparse.Namespace:
    """Return what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default=os.environ.get("OUT", "."))
    parser.add_argument("--only", default="", help="words of a case; or others: a|b")
    parser.add_argument("--limit", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--ranks", default="2,3,4")
    parser.add_argument("--counts", default=",".join(map(str, COUNTS)))
    parser.add_argument("--deadline", type=float, default=2.0)
    parser.add_argument("--prefix", default="", help="such as compute-sanitizer")
    parser.add_argument("--worker", type=int, default=-1)
    return parser.parse_args()


def main() -> int:
    """Choose, compile in parallel, run, report."""
    args = options()
    Path(args.out).mkdir(parents=True, exist_ok=True)
    sizes = [int(r) for r in args.ranks.split(",")]
    chosen = [c for c in cases(sizes) if wanted(c, args.only)]
    chosen = chosen[: args.limit] if args.limit else chosen
    if args.worker >= 0:
        work(chosen, args)
        return 0
    began = time.monotonic()
    said = compile_all(chosen, (9, 0), args.seconds * 2 / 3)
    compiled_s = time.monotonic() - began
    (Path(args.out) / "skip.json").write_text(
        json.dumps([i for i, s in enumerate(said) if s])
    )
    args.seconds = max(10.0, args.seconds - compiled_s)
    results = supervise(args, chosen) if not all(said) else []
    return report(args, chosen, said, results, compiled_s)


def report(
    args: argparse.Namespace,
    chosen: list[Case],
    said: list[str],
    results: list[dict[str, Any]],
    compiled_s: float,
) -> int:
    """Print and write what came of it; return the exit status."""
    why: dict[str, list[str]] = {"refused": [], "error": [], "left out": []}
    for case, text in zip(chosen, said, strict=True):
        if text:
            why[text.split(":")[0]].append(f"{case}: {text}")
    bad = [r for r in results if r["wrong"]]
    right = len(results) - len(bad)
    not_run = said.count("") - len(results)
    print(
        f"{len(chosen)} cases: {len(why['refused'])} refused, {len(why['error'])} do "
        f"not compile, {len(why['left out'])} not compiled in {compiled_s:.1f} s, "
        f"{not_run} not run, {right} right, {len(bad)} wrong"
    )
    for r in bad[:40]:
        print("  ", r["algorithm"], r["ranks"], r["dtype"], r["op"], r["schedule"])
        print("      ", str(r["wrong"])[:300])
    for line in (why["error"] + why["refused"])[:20]:
        print("  ", line[:300])
    document = {
        "right": right, "wrong": bad, "refused": why["refused"],
        "broken": why["error"], "left_out": why["left out"], "not_run": not_run,
        "compile_s": compiled_s, "rows": results,
    }  # fmt: skip
    (Path(args.out) / "virtual.json").write_text(json.dumps(document, indent=1))
    return 1 if bad or why["error"] or not right else 0


if __name__ == "__main__":
    sys.exit(main())
