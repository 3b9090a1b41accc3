"""Epilogues, permutations, 8-bit floats: all ranks on one GPU, the bits of NumPy.

    python tests/device/epilogues.py --out DIR [--only WORDS] [--seconds S]

Every case runs in a worker that may die; the next goes on. What uses exp or tanh may
differ in the last place and is compared with a tolerance; everything else bit for bit.
"""

# ruff: noqa: T201  (a program: it prints its report)

from __future__ import annotations

import argparse
import ctypes
import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "src"), str(HERE)]

import numpy as np  # noqa: E402
from catalogue import Case, parts, prepare  # noqa: E402
from epilogue_cases import C, E, Fused, Permuted, R, S, cases, kernel_of, plan_of  # noqa: E402
from virtual import Memory, Virtual  # noqa: E402

from stretto.executors import Call  # noqa: E402
from stretto.executors.cuda.codegen import abi  # noqa: E402
from stretto.executors.cuda.codegen.compile import compile_kernel  # noqa: E402
from stretto.executors.cuda.device.driver import api, ask, open_device  # noqa: E402
from stretto.executors.cuda.flags.regions import fit  # noqa: E402
from stretto.executors.cuda.launching.kernels import load  # noqa: E402
from stretto.executors.cuda.launching.names import fingerprint  # noqa: E402
from stretto.executors.cuda.launching.prepare import pitches  # noqa: E402
from stretto.program import collectives  # noqa: E402
from stretto.program.collectives import Operator, Shape, narrow, storage  # noqa: E402
from stretto.program.collectives import widen as values_of  # noqa: E402
from stretto.program.epilogues import ValueForm, evaluate  # noqa: E402
from stretto.testing import draw, input_counts, interpret, output_counts  # noqa: E402

HUNG_S = 15.0
"""A case that lasts longer ends its worker, and the next goes on."""


class FusedVirtual(Virtual):
    """One case on the GPU, with arrays for its epilogue."""

    def __init__(self, case: Fused | Permuted, deadline_s: float = 2.0) -> None:
        self.fused, self.case = case, case.plain()
        self.deadline_ns = int(deadline_s * 1e9)
        self.device = open_device(0)
        self.plan = plan_of(case)
        if isinstance(case, Fused):
            self.spec = case.spec()
        kernel = kernel_of(case)
        image = compile_kernel(kernel, arch=self.device.arch)
        self.loaded = [load(self.device, kernel, image)]
        apart = int(api().CUstream_flags.CU_STREAM_NON_BLOCKING)
        self.streams = [ask("cuStreamCreate", apart)]
        self.memory = Memory()
        n = self.plan.num_ranks
        self.control = [self.memory.new(abi.control_bytes(n)) for _ in range(n)]
        flags = api().CU_MEMHOSTALLOC_PORTABLE | api().CU_MEMHOSTALLOC_DEVICEMAP
        self._host = int(ask("cuMemHostAlloc", 4096, flags))
        ctypes.memset(self._host, 0, 4096)
        self._record = int(ask("cuMemHostGetDevicePointer", self._host, 0))

    def run(self, count: int, seed: int, launches: int = 2) -> str:
        """Run on fresh rows several times; return what is wrong, or nothing."""
        case, plan, spec = self.case, self.plan, self.spec
        n, grain = plan.num_ranks, spec.row or 1
        program = case.program()
        kind = collectives.get(plan.collective)
        shape = Shape(num_ranks=n, split=plan.split, params=plan.params)
        counts = [count * grain] * kind.num_parts(shape)
        itemsize = storage(case.dtype).itemsize
        rows = np.asarray(counts) // grain
        sizes = kind.symbol_sizes(shape, rows, itemsize * grain)
        where = fit(plan, sizes, itemsize, grain=grain, share=self.fused.share)
        needs = [abi.footprint(plan, where, r) for r in range(n)]
        rng = np.random.default_rng(seed)
        data = Memory()
        try:
            half = max(f.stage for f in needs)
            packet_half = max(f.packets for f in needs)
            n_in, n_out = input_counts(program, counts), output_counts(program, counts)
            buffers = {
                "input": [data.new(c * itemsize) for c in n_in],
                "output": [data.new(c * itemsize, 0xA5) for c in n_out],
                "stage": [data.new(2 * half, 0x5A) for _ in needs],
                "packets": [data.new(2 * packet_half) for _ in needs],
                "control": self.control,
            }
            rooms = [self._rooms(data, c) for c in n_out]
            fields = {
                **buffers, "record": self._record, "deadline_ns": self.deadline_ns,
                "fingerprint": fingerprint(plan, case.dtype, case.op, counts),
                "stage_half": half, "packet_half": packet_half,
            }  # fmt: skip
            kernel = self.loaded[0].kernel
            packed = [
                abi.pack(kernel, where, fields, [*self._words(i), *o]) for i, o in rooms
            ]
            for launch in range(launches):
                given = [draw(rng, c, case.dtype, Operator.SUM) for c in n_in]
                for start, one in zip(buffers["input"], given, strict=True):
                    _upload(start, one)
                more = [
                    self._fill(rng, i, c)
                    for (i, _), c in zip(rooms, n_out, strict=True)
                ]
                want = interpret(
                    program, given, dtype=case.dtype, op=Operator.SUM, counts=counts
                )
                wrong = self._launch(self._join(packed))
                wrong = wrong or self._compare(buffers["output"], want)
                wrong = wrong or self._judge(want, more, [o for _, o in rooms])
                if wrong:
                    return f"rows={count} launch={launch}: {wrong}"
            return ""
        finally:
            ask("cuCtxSynchronize")
            data.free()

    def _size(self, form: ValueForm, count: int) -> int:
        row = self.spec.row or max(count, 1)
        return {E: count, R: row, C: count // row, S: 1}[form]

    def _rooms(self, data: Memory, count: int) -> tuple[list[int], list[int]]:
        made = [
            data.new(self._size(n.form, count) * storage(n.dtype or "float32").itemsize)
            for n in (*self.spec.inputs, *self.spec.outputs)
        ]
        return made[: len(self.spec.inputs)], made[len(self.spec.inputs) :]

    def _words(self, rooms: list[int]) -> list[int]:
        return [
            room
            if named.dtype
            else int(np.float32(self.fused.forms[named.name]).view(np.uint32))
            for named, room in zip(self.spec.inputs, rooms, strict=True)
        ]

    def _fill(self, rng: Any, rooms: list[int], count: int) -> list[Any]:
        made = []
        for named, room in zip(self.spec.inputs, rooms, strict=True):
            if not named.dtype:
                made.append(self.fused.forms[named.name])
                continue
            drawn = rng.uniform(-2, 2, self._size(named.form, count))
            one = narrow(drawn.astype(np.float32), named.dtype)
            _upload(room, one)
            made.append(one)
        return made

    def _judge(self, want: list[Any], more: list[Any], rooms: list[Any]) -> str:
        for rank, result in enumerate(want):
            made = evaluate(self.spec, result, more[rank])
            for named, expected, room in zip(
                self.spec.outputs, made, rooms[rank], strict=True
            ):
                got = np.empty_like(expected)
                if got.size:
                    ask("cuMemcpyDtoH", got.ctypes.data, room, got.nbytes)
                    ask("cuMemsetD8", room, 0xA5, got.nbytes)
                off = values_of(got, named.dtype).astype(float)
                off = np.abs(off - values_of(expected, named.dtype))
                same = got.view(np.uint8) == expected.view(np.uint8)
                right = same.reshape(got.size, -1).all(1) if got.size else same
                if self.fused.tolerance:
                    right = off <= self.fused.tolerance
                if not right.all():
                    bad = np.flatnonzero(~right)
                    return (
                        f"rank {rank} {named.name}: {bad.size} of {got.size} differ, "
                        f"first [{bad[0]}]: got {got[bad[0]]!r}, want "
                        f"{expected[bad[0]]!r}; largest error {np.nanmax(off):.3g}"
                    )
        return ""


class PermutedVirtual(FusedVirtual):
    """An all_to_all with its permutation."""

    spec = None

    def run(self, count: int, seed: int, launches: int = 2) -> str:
        """Run on fresh data several times; return what is wrong, or nothing."""
        case, plan, n = self.fused, self.plan, self.plan.num_ranks
        kind, itemsize = collectives.get("all_to_all"), storage(case.dtype).itemsize
        counts = np.full(n * n, case.count)
        shape = Shape(num_ranks=n, split=plan.split, params=plan.params)
        where = fit(plan, kind.symbol_sizes(shape, counts, itemsize), itemsize)
        needs = [abi.footprint(plan, where, r) for r in range(n)]
        rng, data = np.random.default_rng(seed), Memory()
        call = Call(dtype=case.dtype, counts=tuple(counts), rows=case.rows)
        try:
            fields = self._fields(data, needs, case.count * n * itemsize)
            packed = [
                abi.pack(
                    self.loaded[0].kernel, where, fields, pitches(plan, call, itemsize)
                )
                for _ in range(n)
            ]
            for launch in range(launches):
                given = [
                    draw(rng, case.count * n, case.dtype, Operator.SUM)
                    for _ in range(n)
                ]
                for start, one in zip(fields["input"], given, strict=True):
                    _upload(start, one)
                parts = [
                    np.split(g.reshape(case.shape), n, axis=case.split) for g in given
                ]
                want = [
                    np.concatenate([p[r] for p in parts], axis=case.concat).ravel()
                    for r in range(n)
                ]
                wrong = self._launch(self._join(packed))
                wrong = wrong or self._compare(fields["output"], want)
                if wrong:
                    return f"launch={launch}: {wrong}"
            return ""
        finally:
            ask("cuCtxSynchronize")
            data.free()

    def _fields(self, data: Memory, needs: Any, nbytes: int) -> dict[str, Any]:
        half = max(f.stage for f in needs)
        packet_half = max(f.packets for f in needs)
        return {
            "input": [data.new(nbytes) for _ in needs],
            "output": [data.new(nbytes, 0xA5) for _ in needs],
            "stage": [data.new(2 * half, 0x5A) for _ in needs],
            "packets": [data.new(2 * packet_half) for _ in needs],
            "control": self.control, "record": self._record,
            "deadline_ns": self.deadline_ns, "fingerprint": 77,
            "stage_half": half, "packet_half": packet_half,
        }  # fmt: skip


def _upload(start: int, values: Any) -> None:
    if values.size:
        raw = np.ascontiguousarray(values)
        ask("cuMemcpyHtoD", start, raw.ctypes.data, raw.nbytes)


def opened(case: Any) -> tuple[Virtual, tuple[int, ...]]:
    """Return a case on the GPU, and the sizes to run."""
    if isinstance(case, Fused):
        return FusedVirtual(case), case.rows
    if isinstance(case, Permuted):
        return PermutedVirtual(case), (0,)
    return Virtual(case), (7, 4099)


def work(start: int, only: str, seconds: float, log: Path) -> None:
    """Run cases from one on, a line of the log before and after each."""
    stop_at = time.monotonic() + seconds
    with log.open("a") as out:
        for index, case in enumerate(cases()):
            if index < start or only not in str(case):
                continue
            if time.monotonic() > stop_at:
                return
            print(json.dumps({"begin": index}), file=out, flush=True)
            began, wrong = time.monotonic(), ""
            hung = threading.Timer(HUNG_S, os._exit, (9,))
            hung.start()
            try:
                machine, sizes = opened(case)
                for count in sizes:
                    wrong = wrong or machine.run(count, seed=index)
                machine.close()
            except Exception as e:
                wrong = f"{type(e).__name__}: {e}"
            hung.cancel()
            took = round(time.monotonic() - began, 3)
            said = {"end": index, "case": str(case), "wrong": wrong, "seconds": took}
            print(json.dumps(said), file=out, flush=True)
            if wrong.startswith("DeviceError"):
                sys.exit(3)  # the context is lost: the next worker has another


def compiled(index: int) -> str:
    """Compile a case into the disk cache; return what went wrong, or nothing."""
    case = list(cases())[index]
    try:
        if isinstance(case, Case):
            return "".join(prepare(case, rank, (9, 0)) for rank in parts(case))
        compile_kernel(kernel_of(case), arch=(9, 0))
    except Exception as e:
        return f"{type(e).__name__}: {e}"
    return ""


def compile_all(only: str, seconds: float) -> None:
    """Compile on all cores; what is not done in time, a worker compiles again."""
    chosen = [i for i, case in enumerate(cases()) if only in str(case)]
    pool = ProcessPoolExecutor(max(1, (os.cpu_count() or 2) - 1))
    began = time.monotonic()
    done, late = wait([pool.submit(compiled, i) for i in chosen], timeout=seconds)
    running = list(pool._processes.values())
    pool.shutdown(wait=not late, cancel_futures=True)
    for process in running if late else ():
        process.kill()
    took = time.monotonic() - began
    print(f"{len(done)} kernels compiled in {took:.1f} s, {len(late)} not", flush=True)


def supervise(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Start workers until every case has been tried, or time is over."""
    Path(args.out).mkdir(parents=True, exist_ok=True)
    log = Path(args.out) / "epilogues.log"
    log.write_text("")
    stop_at, start, said = time.monotonic() + args.seconds, 0, {}
    names = [str(case) for case in cases()]
    while start < len(names) and time.monotonic() < stop_at:
        left = stop_at - time.monotonic()
        command = [sys.executable, __file__, "--worker", str(start), "--out", args.out]
        command += ["--only", args.only, "--seconds", str(left)]
        try:
            code = subprocess.run(command, timeout=left + 5, check=False).returncode
        except subprocess.TimeoutExpired:
            code = -1
        begun = -1
        for line in log.read_text().splitlines():
            one = json.loads(line)
            begun = one.get("begin", begun)
            said.update({one["end"]: one} if "end" in one else {})
        if begun >= 0 and begun not in said:
            wrong = f"the worker ended, {code=}"
            said[begun] = {"end": begun, "case": names[begun], "wrong": wrong}
        if code == 0 or begun < start:
            break
        start = begun + 1
    return [said[i] for i in sorted(said)]


def main() -> int:
    """Run, report, and fail when anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default=os.environ.get("OUT", "."))
    parser.add_argument("--only", default="")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--worker", type=int, default=-1)
    args = parser.parse_args()
    if args.worker >= 0:
        work(args.worker, args.only, args.seconds, Path(args.out) / "epilogues.log")
        return 0
    compile_all(args.only, args.seconds * 0.6)
    rows = supervise(args)
    (Path(args.out) / "epilogues.json").write_text(json.dumps(rows, indent=1))
    wrong = [row for row in rows if row["wrong"]]
    for row in wrong:
        print(f"WRONG {row['case']}: {row['wrong'][:300]}")
    wanted = sum(args.only in str(case) for case in cases())
    print(f"epilogues: {len(rows) - len(wrong)} of {wanted} cases are right")
    return 1 if wrong or len(rows) < wanted else 0


if __name__ == "__main__":
    sys.exit(main())
