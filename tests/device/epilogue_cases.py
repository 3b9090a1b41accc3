"""What tests/device/epilogues.py runs: epilogues, permutations, 8-bit floats."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from catalogue import Case

from stretto.compiler.plan import Plan
from stretto.compiler.verify import verify_plan
from stretto.executors.cuda.codegen import abi, generate
from stretto.program import epilogues as ep
from stretto.program.collectives import FLOAT8
from stretto.program.epilogues import Named, ValueForm, resolve

E, R, C, S = ValueForm.ELEMENT, ValueForm.ROW, ValueForm.COLUMN, ValueForm.SCALAR


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
    share: int = 1
    """Blocks to a row."""
    tolerance: float = 0.0

    def __str__(self) -> str:
        """Return the case in a line."""
        return (
            f"{self.function.name} {self.algorithm} n={self.ranks} {self.dtype} "
            f"row={self.row} share={self.share} [{self.schedule}]"
        )

    def spec(self) -> Any:
        """Return what the kernel is made for."""
        named = {
            name: Named(name, self.dtype, form)
            if isinstance(form, ValueForm)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Permuted:
    """One all_to_all along other axes than the first."""

    ranks: int
    schedule: str
    shape: tuple[int, ...]
    split: int
    concat: int
    dtype: str = "bfloat16"

    def __str__(self) -> str:
        """Return the case in a line."""
        return (
            f"all_to_all n={self.ranks} {self.dtype} {self.shape} split={self.split} "
            f"concat={self.concat} [{self.schedule}]"
        )

    @property
    def count(self) -> int:
        """Return the elements of a part."""
        return math.prod(self.shape) // self.ranks

    @property
    def rows(self) -> tuple[int, int]:
        """Return how many elements lie together, in the input and in the output."""
        part = list(self.shape)
        part[self.split] //= self.ranks
        rows = [math.prod(part[axis:]) if axis else 0 for axis in self.axes]
        return rows[0], rows[1]

    @property
    def axes(self) -> tuple[int, int]:
        """Return both axes."""
        return self.split, self.concat

    def plain(self) -> Case:
        """Return the collective without its permutation."""
        return Case(
            algorithm="all_to_all/one_shot",
            ranks=self.ranks,
            schedule=self.schedule,
            dtype=self.dtype,
            op="sum",
        )


NORM = {"residual": E, "weight": R, "eps": 1e-6}
SHARES = (
    (8, 512),
    (8, 128),
    (16, 256),
    (8, 256),
    (32, 32),
    (4, 256),
    (2, 512),
    (4, 64),
)
"""Blocks to a row of 8192 bf16, and their threads: a cell each, or fewer, or more."""
SCHEDULES = (
    "push packets staged blocks=8 threads=512",
    "push packets staged blocks=4 threads=1024",
    "push bulk staged blocks=3 threads=512 tile_bytes=65536",
    "pull bulk zero_copy blocks=4 threads=256",
    "push bulk zero_copy blocks=4 threads=512",
)


def cases() -> Iterator[Fused | Permuted | Case]:
    """Yield everything, what matters most first."""
    for algorithm in ("all_reduce/one_shot", "all_reduce/two_shot"):
        for share, threads in SHARES:
            words = f"push packets staged blocks={max(8, share)} threads={threads}"
            yield Fused(
                function=norm_then_fp8 if threads == 256 else add_rms_norm,
                algorithm=algorithm, ranks=4, schedule=words, dtype="bfloat16",
                row=8192, forms=NORM, share=share,
            )  # fmt: skip
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
    for words in (*SCHEDULES[:2], *SCHEDULES[3:]):
        yield Permuted(ranks=4, schedule=words, shape=(33, 32, 128), split=1, concat=0)
        yield Permuted(ranks=4, schedule=words, shape=(64, 8, 128), split=0, concat=1)
        yield Permuted(
            ranks=3, schedule=words, shape=(2, 9, 5, 6), split=3, concat=1, dtype="int8"
        )
    for dtype in FLOAT8:
        for op in ("sum", "prod", "min", "max", "avg"):
            for words in ("push packets staged", "pull bulk zero_copy"):
                yield Case(
                    algorithm="all_reduce/two_shot", ranks=4, dtype=dtype, op=op,
                    schedule=f"{words} blocks=2 threads=128 tile_bytes=4096",
                )  # fmt: skip


def plan_of(case: Fused | Permuted) -> Plan:
    """Return the plan, of which any number of tiles may be run."""
    return verify_plan(case.plain().plan()).closed().value


def kernel_of(case: Fused | Permuted) -> abi.Kernel:
    """Return the kernel of all ranks."""
    plan = verify_plan(plan_of(case))
    if isinstance(case, Permuted):
        return generate.kernel_of(plan, rank=None, dtype=case.dtype, rows=case.rows)
    return generate.kernel_of(
        plan, rank=None, dtype=case.dtype, epilogue=case.spec(), share=case.share
    )
