"""The kernels that gpu_serving.py tries: schedules, and settings of the generator.

A variant is `all_reduce/NAME|SCHEDULE|SETTING,SETTING`. Nothing here needs a GPU.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gpu_fused_kernels import call_of, chosen

from stretto.compiler.lower import lower
from stretto.compiler.plan import Schedule
from stretto.compiler.verify import verify, verify_plan
from stretto.executors.cuda.codegen import rowwise
from stretto.executors.cuda.codegen.compile import compile_kernel
from stretto.program import algorithms

__all__ = ["candidates", "compile_one", "tried"]

SETTINGS: dict[str, tuple[str, str, Any]] = {
    "memory": ("rowwise", "MAX_CLUSTER", 1),  # blocks of a row meet in memory
    "pairs": ("rowwise", "ALONE", 512),  # registers for two blocks of 512 on an SM
}
"""The constant of a module of the executor that each setting changes."""


@contextmanager
def tried(variant: str) -> Iterator[None]:
    """Generate as the variant's settings say, while this is held."""
    before: list[tuple[Any, str, Any]] = []
    words = ",".join(variant.split("|")[2:])
    for word in filter(None, words.split(",")):
        name, constant, value = SETTINGS[word]
        module = importlib.import_module(f"stretto.executors.cuda.{name}")
        old = getattr(module, constant)
        before.append((module, constant, old))
        setattr(module, constant, value)
    try:
        yield
    finally:
        for module, constant, old in reversed(before):
            setattr(module, constant, old)


def candidates(rows: int, hidden: int, ranks: int) -> list[str]:
    """Return the variants of a case, what the runtime takes first."""
    first = chosen(rows, ranks, hidden)
    found = [first]
    cells = hidden // 8
    for share in (1, 2, 4, 8):
        threads, blocks = cells // share, rows * share
        whole = cells % (share * 32) == 0
        if not (whole and 64 <= threads <= 512 and blocks <= 256):
            continue
        words = f"push packets staged blocks={blocks} threads={threads}"
        one = f"all_reduce/one_shot|{words}"
        found += [one, *([f"{one}|pairs"] if threads > 256 and blocks <= 128 else [])]
    if rows >= ranks * 32:
        found.append("all_reduce/two_shot|push packets staged blocks=128 threads=512")
    return list(dict.fromkeys(found))


def compile_one(rows: int, hidden: int, ranks: int, variant: str, rank: int) -> str:
    """Compile a kernel into the disk cache; return what went wrong, or nothing."""
    from stretto.executors.cuda.codegen.generate import kernel_of

    try:
        with tried(variant):
            name, schedule = variant.split("|")[:2]
            program = verify(algorithms.get(name).build(ranks))
            plan = verify_plan(lower(program, Schedule.parse(schedule)), program)
            spec = call_of(rows, hidden).epilogue
            assert spec is not None, "the call has one"
            part = rows if "one_shot" in name else -(-rows // ranks)
            kernel = kernel_of(
                plan,
                rank=rank,
                dtype="bfloat16",
                epilogue=spec,
                share=rowwise.shared_by(spec, plan.value.schedule.blocks, part),
            )
            compile_kernel(kernel, arch=(9, 0))
    except Exception as e:
        return f"{rows} x {hidden}: {variant}: {type(e).__name__}: {str(e)[:300]}"
    return ""
