"""Epilogues and 8-bit floats on one GPU: all ranks in one launch, bits of NumPy.

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
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "src"), str(HERE)]

import numpy as np  # noqa: E402
from catalogue import Case, parts, prepare  # noqa: E402
from virtual import Memory, Virtual  # noqa: E402

from stretto import collectives  # noqa: E402
from stretto import epilogues as ep  # noqa: E402
from stretto.collectives import FLOAT8, Operator, Shape, narrow, storage  # noqa: E402
from stretto.collectives import widen as values_of  # noqa: E402
from stretto.epilogues import Form, Named, evaluate, resolve  # noqa: E402
from stretto.executors.cuda import abi  # noqa: E402
from stretto.executors.cuda.compile import compile_kernel  # noqa: E402
from stretto.executors.cuda.driver import api, ask, open_device  # noqa: E402
from stretto.executors.cuda.generate import generate  # noqa: E402
from stretto.executors.cuda.launch import load  # noqa: E402
from stretto.executors.cuda.regions import fit  # noqa: E402
from stretto.testing import draw, input_counts, interpret, output_counts  # noqa: E402

E, R, C, S = Form.ELEMENT, Form.ROW, Form.COLUMN, Form.SCALAR


@ep.epilogue
def add_rms_norm(y, residual, weight, eps):
    """Residual add and root-mean-square norm."""
    s = y + residual
    return {"out": s * ep.rsqrt(ep.row_mean(s * s) + eps) * weight, "residual": s}


@ep.epilogue
def norm_then_fp8(y, residual, weight, eps):
    """The same, and a dynamic scale for every row."""
    s = y + residual
    normed = s * ep.rsqrt(ep.row_mean(s * s) + eps) * weight
    scale = ep.maximum(ep.row_amax(normed) / 448.0, 1e-12)
    return {
        "q": ep.cast(normed / scale, "float8_e4m3fn"),
        "scale": ep.cast(scale, "float32"),
        "residual": s,
    }


@ep.epilogue
def layer_norm(y, weight, bias, keep):
    """Two reductions, one after the other, and a choice for every row."""
    centred = y - ep.row_mean(y)
    scale = ep.rsqrt(ep.row_mean(centred * centred) + 1e-5)
    return centred * scale * weight + ep.where(keep > 0.5, bias, -bias)


@ep.epilogue
def scaled(y, scale):
    """Casts, without rows."""
    half = ep.cast(y * scale, "bfloat16")
    return {"half": half, "byte": ep.cast(abs(half) - y, "float8_e5m2")}


@ep.epilogue
def gelu(y, bias):
    """Functions whose last place is the library's."""
    x = y + bias
    return 0.5 * x * (1.0 + ep.tanh(0.79788456 * (x + 0.044715 * x * x * x)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Fused:
    """One kernel with an epilogue, on several numbers of rows."""

    function: Any
    algorithm: str
    ranks: int
    schedule: str
    dtype: str
    row: int
    forms: dict[str, Any] = field(default_factory=dict)
    rows: tuple[int, ...] = (1, 5, 12)
    tolerance: float = 0.0

    def __str__(self) -> str:
        """Return the case in a line."""
        return (
            f"{self.function.name} {self.algorithm} n={self.ranks} {self.dtype} "
            f"row={self.row} [{self.schedule}]"
        )

    def spec(self) -> Any:
        """Return what the kernel is made for."""
        named = {
            name: Named(name, self.dtype, form)
            if isinstance(form, Form)
            else Named(name, "", S)
            for name, form in self.forms.items()
        }
        return resolve(self.function.graph, named, dtype=self.dtype, row=self.row)

    def plain(self) -> Case:
        """Return the collective without its end."""
        return Case(
            algorithm=self.algorithm,
            ranks=self.ranks,
            schedule=self.schedule,
            dtype=self.dtype,
            op="sum",
        )


NORM = {"residual": E, "weight": R, "eps": 1e-6}
SCHEDULES = (
    "push packets staged blocks=8 threads=512",
    "push packets staged blocks=4 threads=1024",
    "push lines staged blocks=4 threads=256",
    "push bulk staged blocks=3 threads=512 tile_bytes=65536",
    "pull bulk zero_copy blocks=4 threads=256",
    "push bulk zero_copy blocks=4 threads=512",
)


def cases() -> Iterator[Fused | Case]:
    """Yield everything, what matters most first."""
    for schedule in SCHEDULES:
        for algorithm in ("all_reduce/one_shot", "all_reduce/two_shot"):
            yield Fused(
                function=add_rms_norm, algorithm=algorithm, ranks=4,
                schedule=schedule, dtype="bfloat16", row=8192, forms=NORM,
            )  # fmt: skip
    for row, dtype in ((5120, "float16"), (2880, "bfloat16"), (37, "float32")):
        for algorithm in ("all_reduce/two_shot", "reduce_scatter/one_shot"):
            yield Fused(
                function=norm_then_fp8, algorithm=algorithm, ranks=3, dtype=dtype,
                schedule="push packets staged blocks=4 threads=256", row=row,
                forms=NORM,
            )  # fmt: skip
    long = {"weight": R, "bias": R, "keep": C}
    for row, threads in ((32768, 256), (2052, 32), (100, 512)):
        yield Fused(
            function=layer_norm, algorithm="reduce_scatter/one_shot", ranks=2,
            schedule=f"push packets staged blocks=4 threads={threads}",
            dtype="float32", row=row, forms=long,
        )  # fmt: skip
    for algorithm in ("all_gather/one_shot", "all_reduce/ring"):
        for words in ("push packets staged", "pull bulk zero_copy"):
            yield Fused(
                function=scaled, algorithm=algorithm, ranks=4,
                schedule=f"{words} blocks=4 threads=128 tile_bytes=4096",
                dtype="float32", row=0, forms={"scale": S}, rows=(1, 701, 20011),
            )  # fmt: skip
    yield Fused(
        function=gelu, algorithm="all_reduce/two_shot", ranks=2, row=1024,
        schedule="push packets staged blocks=4 threads=128", dtype="float32",
        forms={"bias": R}, tolerance=1e-5,
    )  # fmt: skip
    for dtype in FLOAT8:
        for op in ("sum", "prod", "min", "max", "avg"):
            for words in ("push packets staged", "pull bulk zero_copy"):
                yield Case(
                    algorithm="all_reduce/two_shot", ranks=4, dtype=dtype, op=op,
                    schedule=f"{words} blocks=2 threads=128 tile_bytes=4096",
                )  # fmt: skip


class FusedVirtual(Virtual):
    """One case on the GPU, with arrays for its epilogue."""

    def __init__(self, case: Fused, deadline_s: float = 2.0) -> None:
        self.fused, self.case = case, case.plain()
        self.deadline_ns = int(deadline_s * 1e9)
        self.device = open_device(0)
        self.plan, self.spec = self.case.plan(), case.spec()
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
        where = fit(plan, sizes, itemsize, grain=grain)
        needs = [abi.footprint(plan, where, r) for r in range(n)]
        rng = np.random.default_rng(seed)
        data = Memory()
        try:
            half = max(f.stage for f in needs)
            packet_half = max(f.packets + f.lines for f in needs)
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
                "fingerprint": abi.fingerprint(plan, case.dtype, case.op, counts),
                "stage_unit": needs[0].stage_unit,
                "packet_unit": needs[0].packet_unit,
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

    def _size(self, form: Form, count: int) -> int:
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


def _upload(start: int, values: Any) -> None:
    if values.size:
        raw = np.ascontiguousarray(values)
        ask("cuMemcpyHtoD", start, raw.ctypes.data, raw.nbytes)


def kernel_of(case: Fused) -> abi.Kernel:
    """Return the kernel of all ranks."""
    return generate(
        case.plain().plan(), rank=None, dtype=case.dtype, epilogue=case.spec()
    )


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
            try:
                fused = isinstance(case, Fused)
                machine = FusedVirtual(case) if fused else Virtual(case)
                for count in case.rows if fused else (7, 4099):
                    wrong = wrong or machine.run(count, seed=index)
                machine.close()
            except Exception as e:
                wrong = f"{type(e).__name__}: {e}"
            took = round(time.monotonic() - began, 3)
            said = {"end": index, "case": str(case), "wrong": wrong, "seconds": took}
            print(json.dumps(said), file=out, flush=True)
            if wrong.startswith("DeviceError"):
                sys.exit(3)  # the context is lost: the next worker has another


def compiled(index: int) -> str:
    """Compile a case into the disk cache; return what went wrong, or nothing."""
    case = list(cases())[index]
    try:
        if not isinstance(case, Fused):
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
