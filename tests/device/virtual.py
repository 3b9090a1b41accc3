"""Every rank of a collective on one GPU, as block groups of one launch.

    python tests/device/virtual.py --out DIR [--only WORDS] [--limit N] [--seconds S]

Runs every shipped algorithm under every protocol on odd counts, with poisoned outputs,
and compares with the reference interpreter bit for bit. One launch holds all ranks, so
compute-sanitizer can watch. Each case runs in a worker that may die; the next goes on.
"""

# ruff: noqa: T201  (a program: it prints its report)

from __future__ import annotations

import argparse
import ctypes
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "src"))

import numpy as np  # noqa: E402

from stretto import algorithms, collectives  # noqa: E402
from stretto.collectives import Operator, Shape, storage  # noqa: E402
from stretto.errors import CallError, ProgramError, StrettoError  # noqa: E402
from stretto.executors.cuda import abi  # noqa: E402
from stretto.executors.cuda.compile import compile_kernel  # noqa: E402
from stretto.executors.cuda.driver import api, ask, open_device  # noqa: E402
from stretto.executors.cuda.generate import generate  # noqa: E402
from stretto.executors.cuda.launch import enqueue, load  # noqa: E402
from stretto.executors.cuda.regions import fit  # noqa: E402
from stretto.executors.cuda.watch import explain  # noqa: E402
from stretto.ir import Program  # noqa: E402
from stretto.lower import lower  # noqa: E402
from stretto.plan import Plan, Schedule  # noqa: E402
from stretto.testing import (  # noqa: E402
    draw,
    input_counts,
    interpret,
    output_counts,
    pairings,
)
from stretto.verify import verify, verify_plan  # noqa: E402

SCHEDULES = (
    "push packets staged blocks=2 threads=128 tile_bytes=4096",
    "push lines staged blocks=2 threads=128 tile_bytes=4096",
    "push bulk staged blocks=2 threads=128 tile_bytes=4096",
    "pull bulk staged blocks=3 threads=64 tile_bytes=4096",
    "push bulk zero_copy blocks=2 threads=128",
    "pull bulk zero_copy blocks=2 threads=256 tile_bytes=8192",
    "push packets staged blocks=1 threads=256",
)
COUNTS = (1, 7, 1000, 4099, 20011)
"""Elements of each part: fewer than a vector, odd, and several tiles."""
DEADLINE_NS = 2_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One kernel to run on several counts."""

    algorithm: str
    ranks: int
    schedule: str
    dtype: str
    op: str

    def program(self) -> Program:
        """Return the program."""
        return algorithms.get(self.algorithm).build(self.ranks, **self.params())

    def params(self) -> dict[str, object]:
        """Return what the algorithm needs to be told."""
        if self.algorithm.startswith("permute/"):
            n = self.ranks
            return {"pairs": tuple((r, (r + 1) % n) for r in range(n))}
        return {}

    def plan(self) -> Plan:
        """Return the proved plan."""
        plan = lower(verify(self.program()), Schedule.parse(self.schedule))
        return verify_plan(plan).value

    def __str__(self) -> str:
        """Return the case in a line."""
        return (
            f"{self.algorithm} n={self.ranks} {self.dtype} {self.op} [{self.schedule}]"
        )


def cases(sizes: Sequence[int] = (2, 3, 4, 8)) -> Iterator[Case]:
    """Yield every algorithm under every schedule, types and operators in turn."""
    turn = itertools.cycle(pairings())
    for schedule in SCHEDULES:
        for name in algorithms.names():
            reduces = collectives.get(algorithms.get(name).collective).reduces
            for ranks in sizes:
                if algorithms.get(name).refuses(ranks) is not None:
                    continue
                dtype, op = next(turn)
                if ranks == 4:
                    dtype, op = "bfloat16", Operator.SUM
                yield Case(
                    algorithm=name,
                    ranks=ranks,
                    schedule=schedule,
                    dtype=dtype,
                    op=op.value if reduces else "sum",
                )


def kernel_of(case: Case, plan: Plan) -> abi.Kernel:
    """Return the kernel that runs all ranks in one launch."""
    return generate(plan, rank=None, dtype=case.dtype, op=Operator(case.op))


def prepare(case: Case, arch: tuple[int, int]) -> str:
    """Compile into the disk cache; return why that cannot be, or nothing."""
    try:
        compile_kernel(kernel_of(case, case.plan()), arch=arch)
    except (CallError, ProgramError) as e:
        return f"refused: {e}"
    except Exception as e:
        return f"error: {type(e).__name__}: {e}"
    return ""


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

    def __init__(self, case: Case) -> None:
        self.case = case
        self.device = open_device(0)
        self.plan = case.plan()
        self.kernel = kernel_of(case, self.plan)
        image = compile_kernel(self.kernel, arch=self.device.arch)
        self.loaded = load(self.device, self.kernel, image)
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
                    self.kernel,
                    where,
                    {
                        **buffers,
                        "record": self._record,
                        "deadline_ns": DEADLINE_NS,
                        "fingerprint": abi.fingerprint(
                            plan, case.dtype, case.op, counts
                        ),
                        "stage_unit": needs[0].stage_unit,
                        "packet_unit": needs[0].packet_unit,
                        "stage_half": half,
                        "packet_half": packet_half,
                    },
                )
                for _ in range(n)
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

    def _join(self, records: list[Any]) -> Any:
        """Return the parameters of all ranks, one record after another."""
        empty = records[0].size == abi.PARAMS.itemsize
        word = np.zeros(8 * empty, np.uint8)  # an empty table is a word in C
        return np.concatenate([np.concatenate([r, word]) for r in records])

    def _launch(self, packed: Any) -> str:
        raw = np.ascontiguousarray(packed)
        array = (ctypes.c_void_p * 1)(raw.ctypes.data)
        enqueue(self.device, self.loaded, api().CUstream(0), ctypes.addressof(array))
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
        ask("cuModuleUnload", self.loaded.module)


def work(chosen: list[Case], start: int, stop_at: float, log: Path) -> None:
    """Run cases from one on, a line of the log before and after each."""
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
                machine = Virtual(case)
                wrong = ""
                for count in COUNTS:
                    wrong = wrong or machine.run(count, seed=index)
                machine.close()
            except StrettoError as e:
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
        command += ["--ranks", args.ranks]
        with (Path(args.out) / "virtual.err").open("a") as err:
            try:
                code = subprocess.run(
                    command, stderr=err, stdout=err, timeout=left + 20, check=False
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


def main() -> int:
    """Choose, compile in parallel, run, report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default=os.environ.get("OUT", "."))
    parser.add_argument("--only", default="", help="words a case must contain")
    parser.add_argument("--limit", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--ranks", default="2,3,4")
    parser.add_argument("--prefix", default="", help="such as compute-sanitizer")
    parser.add_argument("--worker", type=int, default=-1)
    args = parser.parse_args()
    sizes = [int(r) for r in args.ranks.split(",")]
    chosen = [c for c in cases(sizes) if all(w in str(c) for w in args.only.split())]
    chosen = chosen[: args.limit] if args.limit else chosen
    if args.worker >= 0:
        stop_at = time.monotonic() + args.seconds
        work(chosen, args.worker, stop_at, Path(args.out) / "virtual.log")
        return 0
    began = time.monotonic()
    arch = (9, 0)
    with ProcessPoolExecutor(max(1, (os.cpu_count() or 2) - 1)) as pool:
        said = list(pool.map(prepare, chosen, [arch] * len(chosen), chunksize=4))
    compiled_s = time.monotonic() - began
    runnable = [c for c, s in zip(chosen, said, strict=True) if not s]
    refused = [
        f"{c}: {s}" for c, s in zip(chosen, said, strict=True) if s.startswith("refu")
    ]
    broken = [
        f"{c}: {s}" for c, s in zip(chosen, said, strict=True) if s.startswith("err")
    ]
    print(
        f"{len(chosen)} cases, {len(refused)} refused, {len(broken)} do not compile, "
        f"{compiled_s:.1f} s"
    )
    skip = [i for i, s in enumerate(said) if s]
    (Path(args.out) / "skip.json").write_text(json.dumps(skip))
    args.seconds = max(10.0, args.seconds - compiled_s)
    results = supervise(args, chosen) if runnable else []
    bad = [r for r in results if r["wrong"]]
    right = sum(not r["wrong"] for r in results)
    print(f"{right} right, {len(bad)} wrong, of {len(results)} run")
    for r in bad[:40]:
        print("  ", r["algorithm"], r["ranks"], r["dtype"], r["op"], r["schedule"])
        print("      ", str(r["wrong"])[:300])
    for line in (broken + refused)[:20]:
        print("  ", line[:300])
    document = {
        "right": right, "wrong": bad, "refused": refused, "broken": broken,
        "compile_s": compiled_s, "rows": results,
    }  # fmt: skip
    (Path(args.out) / "virtual.json").write_text(json.dumps(document, indent=1))
    return 1 if bad or broken else 0


if __name__ == "__main__":
    sys.exit(main())
