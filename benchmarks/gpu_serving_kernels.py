"""The kernels that gpu_serving.py tries: schedules, and settings of the generator.

A variant is `all_reduce/NAME|SCHEDULE|SETTING,SETTING`. Nothing here needs a GPU.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gpu_fused_kernels import call_of, chosen

from stretto import algorithms
from stretto.executors import Call
from stretto.executors.cuda import rowwise
from stretto.executors.cuda.compile import compile_kernel
from stretto.lower import lower
from stretto.plan import Schedule
from stretto.verify import verify, verify_plan

__all__ = ["call_for", "candidates", "compile_one", "tried"]

SETTINGS: dict[str, tuple[str, str, Any]] = {
    "two": ("rowwise", "ALONE", 512),  # blocks of 512 threads on an SM
    "along": ("epilogue", "ALONG", 4),  # weights are loaded before packets have come
    "late": ("generate", "LATE_FROM", 1),  # results are stored when sums are out
    "soon": ("generate", "LATE_FROM", 99),  # results are stored before the sums
    "memory": ("rowwise", "MAX_CLUSTER", 1),  # blocks of a row meet in memory
    "warm": ("generate", "TRIALS", ("WARM",)),
    "relaxed": ("generate", "TRIALS", ("RELAXED_CLUSTER",)),
}
"""The constant of a module of the executor that each setting changes."""


@contextmanager
def tried(variant: str) -> Iterator[None]:
    """Generate as the variant's settings say, while this is held."""
    before: list[tuple[Any, str, Any]] = []
    for word in filter(None, (variant.split("|") + [""])[2].split(",")):
        if word not in SETTINGS:
            continue
        name, constant, value = SETTINGS[word]
        module = importlib.import_module(f"stretto.executors.cuda.{name}")
        old = getattr(module, constant)
        before.append((module, constant, old))
        setattr(module, constant, old + value if isinstance(old, tuple) else value)
    try:
        yield
    finally:
        for module, constant, old in reversed(before):
            setattr(module, constant, old)


def call_for(shape: tuple[int, int], variant: str) -> Call:
    """Return the call of a case; with `dropped`, its own result is not stored."""
    call = call_of(*shape)
    if "dropped" not in variant:
        return call
    assert call.epilogue is not None, "the call has one"
    alone = dataclasses.replace(call.epilogue, result=False)
    return dataclasses.replace(call, epilogue=alone)


def candidates(rows: int, hidden: int, ranks: int) -> list[str]:
    """Return the variants of a case, what the runtime takes first."""
    first = chosen(rows, ranks, hidden)
    found = [first, f"{first}|warm,relaxed"]
    cells = hidden // 8

    def add(share: int, threads: int, *settings: str) -> None:
        each = -(-cells // (share * threads))
        if rows * share > 256 or each > 4 or each * threads > 1024:
            return
        if cells % (share * 32) or threads > cells // share:
            return
        words = f"push packets staged blocks={rows * share} threads={threads}"
        for one in settings:
            found.append(f"all_reduce/one_shot|{words}|{one}".rstrip("|"))

    best = "warm,relaxed"
    if rows >= 128:
        add(1, 512, "", best, f"{best},two", f"{best},two,dropped", f"{best},two,late")
        add(1, 256, "", best, f"{best},along", f"{best},dropped", f"{best},soon")
        add(1, 128, best)
        add(2, 256, best, f"{best},dropped")
        add(2, 512, best, f"{best},two")
    elif rows >= 64:
        add(2, 512, "", best, f"{best},two", f"{best},two,dropped")
        add(2, 256, "", best, f"{best},along", f"{best},dropped", f"{best},late")
        add(1, 512, best, f"{best},two", f"{best},two,dropped")
        add(1, 256, best, f"{best},along")
    elif rows >= 32:
        add(4, 128, best)
        add(4, 256, "", best, f"{best},dropped", f"{best},late")
        add(2, 256, best, f"{best},dropped")
        add(2, 512, best)
        add(1, 512, best)
        add(1, 256, best)
    else:
        for share in (8, 4):
            add(share, cells // share, "warm", "relaxed", best, f"{best},late")
        add(8, cells // 16, best)
    return list(dict.fromkeys(found))


def compile_one(rows: int, hidden: int, ranks: int, variant: str, rank: int) -> str:
    """Compile a kernel into the disk cache; return what went wrong, or nothing."""
    from stretto.executors.cuda.generate import generate

    try:
        with tried(variant):
            name, schedule = variant.split("|")[:2]
            program = verify(algorithms.get(name).build(ranks))
            plan = verify_plan(lower(program, Schedule.parse(schedule))).value
            spec = call_for((rows, hidden), variant).epilogue
            assert spec is not None, "the call has one"
            part = rows if "one_shot" in name else -(-rows // ranks)
            kernel = generate(
                plan,
                rank=rank,
                dtype="bfloat16",
                epilogue=spec,
                share=rowwise.shared_by(spec, plan.schedule.blocks, part),
            )
            compile_kernel(kernel, arch=(9, 0))
    except Exception as e:
        return f"{rows} x {hidden}: {variant}: {type(e).__name__}: {str(e)[:300]}"
    return ""
