"""Every rank of a collective on one GPU, as block groups of one launch.

    python tests/device/virtual.py --out DIR [--only WORDS] [--limit N] [--seconds S]

Runs every shipped algorithm under every protocol on odd counts, with poisoned outputs,
and compares with the reference interpreter bit for bit. Where a count is odd, arrays
begin an element late; 8-bit floats are combined in all their pairs. One launch holds
all ranks, so compute-sanitizer can watch; more than four ranks are a launch each, on
streams of their own, since one text of all is long to compile. Each case runs in a
worker that may die; the next goes on. Cases run as they are compiled, far apart ones
first; it all ends within `--seconds`, and says how many were not compiled, or not run.
"""

# ruff: noqa: T201  (a program: it prints its report)

from __future__ import annotations

import argparse
import ctypes
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "src"), str(Path(__file__).parent)]

import numpy as np  # noqa: E402
from catalogue import (  # noqa: E402
    COUNTS,
    Case,
    Compiling,
    cases,
    kernel_of,
    parts,
    wanted,
)
from gpu_memory import Memory  # noqa: E402

from stretto.executors.cuda.codegen import abi  # noqa: E402
from stretto.executors.cuda.codegen.compile import compile_kernel  # noqa: E402
from stretto.executors.cuda.device.driver import api, ask, open_device  # noqa: E402
from stretto.executors.cuda.flags.regions import fit  # noqa: E402
from stretto.executors.cuda.flags.watch import explain  # noqa: E402
from stretto.executors.cuda.launching.kernels import enqueue, load  # noqa: E402
from stretto.executors.cuda.launching.names import fingerprint  # noqa: E402
from stretto.executors.cuda.words import RECORD  # noqa: E402
from stretto.program import collectives  # noqa: E402
from stretto.program.collectives import Operator, Shape, storage, widen  # noqa: E402
from stretto.testing import input_counts, interpret, output_counts  # noqa: E402

END_S = 5.0
"""What is left of the time when no more cases begin: the last ends, and the report."""
GOLDEN = 0.6180339887
HUNG = 9
"""How a worker ends when a case outlives its deadlines by far."""


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
        self.record = np.zeros(1, RECORD)
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
            half = max(f.stage for f in needs)  # the same on all ranks
            packet_half = max(f.packets for f in needs)
            stage = [data.new(2 * half, 0x5A) for _ in needs]
            packets = [data.new(2 * packet_half) for _ in needs]
            n_in, n_out = input_counts(program, counts), output_counts(program, counts)
            late = [self._late(r) * itemsize * (count % 2) for r in range(n)]
            inputs, outputs = (
                [
                    data.new(c * itemsize + a, 0xA5) + a
                    for c, a in zip(k, late, strict=True)
                ]
                for k in (n_in, n_out)
            )
            buffers = {
                "input": inputs, "output": outputs, "stage": stage,
                "packets": packets, "control": self.control,
            }  # fmt: skip
            mark = fingerprint(plan, case.dtype, case.op, counts)
            fields = {
                **buffers,
                "record": self._record,
                "deadline_ns": self.deadline_ns,
                "fingerprint": mark,
                "stage_half": half,
                "packet_half": packet_half,
            }
            kernels = [self.loaded[r % len(self.loaded)].kernel for r in range(n)]
            records = [abi.pack(kernel, where, fields) for kernel in kernels]
            packed = self._join(records)
            for launch in range(launches):
                given = case.inputs(rng, n_in, launch)
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

    def _late(self, rank: int) -> int:
        """Return by how many elements a rank's arrays begin late.

        In zero-copy all ranks' arrays lie alike; staged ones may differ.
        """
        return 1 if self.plan.schedule.memory == "zero_copy" else rank % 2

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
        record = np.frombuffer(ctypes.string_at(self._host, RECORD.itemsize), RECORD)[0]
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
            same = same.reshape(got.size, -1).all(axis=1)
            if self.case.pairs:  # a NaN is a NaN, of either sign
                wide = [widen(v, self.case.dtype) for v in (got, values)]
                same |= np.isnan(wide[0]) & np.isnan(wide[1])
            ask("cuMemsetD8", start, 0xA5, got.nbytes)
            if not same.all():
                bad = np.flatnonzero(~same)
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


def arriving(out: Path, until: float) -> Iterator[int]:
    """Yield cases that no worker has begun, as they are compiled, until the time."""
    tried = {said["begin"] for said in lines_of(out / "virtual.log") if "begin" in said}
    nth = 0
    while time.monotonic() < until:
        ready = lines_of(out / "ready.log")
        if nth == len(ready):
            time.sleep(0.05)
            continue
        index, nth = ready[nth], nth + 1
        if index is None:
            return
        if index not in tried:
            yield index


def lines_of(log: Path) -> list[Any]:
    """Return what has been said in a file; the last line may be half there."""
    text = log.read_text()
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def work(chosen: list[Case], args: argparse.Namespace) -> None:
    """Run cases that are compiled, a line of the log before and after each."""
    folder, counts = Path(args.out), [int(c) for c in args.counts.split(",")]
    with (folder / "virtual.log").open("a") as out:
        for index in arriving(folder, args.until):
            print(json.dumps({"begin": index}), file=out, flush=True)
            began = time.monotonic()
            hung = threading.Timer(8 * args.deadline, os._exit, (HUNG,))
            hung.start()
            try:
                machine = Virtual(chosen[index], args.deadline)
                wrong = ""
                for count in chosen[index].counts(counts):
                    wrong = wrong or machine.run(count, seed=index)
                machine.close()
            except Exception as e:
                wrong = f"{type(e).__name__}: {e}"
            hung.cancel()
            poisoned = wrong.startswith("DeviceError")  # nothing works after some
            said = {
                "end": index,
                "wrong": wrong,
                "seconds": round(time.monotonic() - began, 3),
            }
            print(json.dumps(said), file=out, flush=True)
            if poisoned:
                sys.exit(3)


def run_worker(args: argparse.Namespace, nth: int, until: float) -> str:
    """Run a worker to its end; return how it ended, which is before `until` + 2 s."""
    prefix = args.prefix.replace("NTH", str(nth))
    command = [*prefix.split(), sys.executable, __file__, "--until", str(until)]
    command += ["--out", args.out, "--only", args.only, "--limit", str(args.limit)]
    command += ["--ranks", args.ranks, "--counts", args.counts]
    command += ["--deadline", str(args.deadline)]
    with (Path(args.out) / "virtual.err").open("a") as err:
        process = subprocess.Popen(
            command,
            stderr=err,
            stdout=err,
            start_new_session=True,  # a tool's own children end with it
            env={**os.environ, "CUDA_DEVICE_MAX_CONNECTIONS": "32"},
        )
        try:
            return f"code={process.wait(max(0.1, until + 2 - time.monotonic()))}"
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return "the time was over"


def supervise(args: argparse.Namespace, until: float) -> dict[int, dict[str, Any]]:
    """Run a worker again after every case that ends it; return all results."""
    log = Path(args.out) / "virtual.log"
    log.write_text("")
    lost: dict[int, str] = {}
    before = -1
    for nth in itertools.count():
        ended = run_worker(args, nth, until)
        said = lines_of(log)
        begun = {s["begin"] for s in said if "begin" in s}
        over = {s["end"] for s in said if "end" in s}
        lost |= dict.fromkeys(begun - over - lost.keys(), ended)
        ready = set(lines_of(Path(args.out) / "ready.log"))
        all_begun = None in ready and ready - {None} <= begun
        stuck = len(begun) == before  # workers do not even begin
        if ended == "code=0" or all_begun or stuck or time.monotonic() > until:
            break
        before = len(begun)
    results = {s["end"]: s for s in lines_of(log) if "end" in s}
    for index, how in lost.items():
        if how != "the time was over":  # else it counts as not run
            results[index] = {"end": index, "wrong": f"the worker died, {how}"}
    return dict(sorted(results.items()))


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
    parser.add_argument("--prefix", default="", help="a tool; NTH is the worker")
    parser.add_argument("--until", type=float, default=0)
    return parser.parse_args()


def choose(args: argparse.Namespace) -> list[Case]:
    """Return the cases, far apart ones first: the time may not suffice for all."""
    sizes = [int(r) for r in args.ranks.split(",")]
    found = [c for c in cases(sizes) if wanted(c, args.only)]
    found = found[: args.limit] if args.limit else found
    order = sorted(range(len(found)), key=lambda i: i * GOLDEN % 1)
    return [found[i] for i in order]


def main() -> int:
    """Choose, compile and run side by side, report; within the time."""
    args = options()
    if args.until:
        work(choose(args), args)
        return 0
    until = time.monotonic() + args.seconds - END_S
    Path(args.out).mkdir(parents=True, exist_ok=True)
    chosen = choose(args)
    compiling = Compiling(chosen, (9, 0), Path(args.out) / "ready.log")
    results = supervise(args, until)
    compiling.end()
    rows = [{**asdict(chosen[i]), **said} for i, said in results.items()]
    return report(args, chosen, compiling, rows)


def report(
    args: argparse.Namespace,
    chosen: list[Case],
    compiling: Compiling,
    results: list[dict[str, Any]],
) -> int:
    """Print and write what came of it; return the exit status."""
    why: dict[str, list[str]] = {"refused": [], "error": [], "left out": []}
    said, compiled_s = list(compiling.said), compiling.seconds
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
