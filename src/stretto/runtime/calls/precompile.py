"""Kernels of usual calls, compiled before anybody calls: by a process of its own.

In: how many ranks there are, and which GPU. Out: files in the cache of kernels, in the
order in which models ask for them. Never: a GPU touched, or a rank kept waiting.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from stretto import caches
from stretto._version import __version__
from stretto.compiler.plan import ProvedPlan
from stretto.executors import Call
from stretto.fabric.process import die_with_parent
from stretto.program import collectives
from stretto.program.collectives import Operator, Shape, storage
from stretto.runtime.choice import own
from stretto.runtime.choice.beside import Beside
from stretto.runtime.choice.plans import frozen, plan_of
from stretto.runtime.choice.question import STAGED, Choice, Question, dtype_class
from stretto.runtime.choice.select import Profile
from stretto.runtime.choice.selector import Selector

if TYPE_CHECKING:
    from concurrent.futures import Executor, Future

_SIZES = tuple(1 << k for k in range(10, 29))
_SMALL = 64 << 10
"""Bytes up to which numbers of whole models' sizes, and flags, are moved."""
SWITCH = "STRETTO_AHEAD"
"""0 in the environment: nothing is compiled before it is called."""


@dataclass(frozen=True, slots=True)
class _Usual:
    collective: str
    dtype: str
    op: Operator = Operator.SUM
    up_to: int = _SIZES[-1]


_FIRST = (
    _Usual("broadcast", "float32"),
    _Usual("all_gather", "int64", up_to=_SMALL),
    _Usual("broadcast", "uint8", up_to=_SMALL),
    _Usual("broadcast", "int64", up_to=_SMALL),
    _Usual("all_gather", "uint8", up_to=_SMALL),
    _Usual("all_reduce", "float32"),
)
"""What a model in DDP calls before its first step has ended."""
_SOON = (
    _Usual("all_reduce", "bfloat16"),
    _Usual("all_gather", "bfloat16"),
    _Usual("reduce_scatter", "bfloat16"),
    _Usual("reduce_scatter", "float32", Operator.AVG),
    _Usual("all_gather", "float32"),
    _Usual("broadcast", "bfloat16"),
    _Usual("all_to_all", "bfloat16"),
    _Usual("all_to_all", "float32"),
    _Usual("reduce_scatter", "bfloat16", Operator.AVG),
)
"""What FSDP2 and tensor parallelism call, and an element type of each size: what is
only moved is bits."""
_LATER = (
    _Usual("reduce_scatter", "float32"),
    _Usual("all_reduce", "float32", Operator.AVG),
    _Usual("all_reduce", "bfloat16", Operator.AVG),
    _Usual("all_reduce", "float16"),
)
"""What is called less often."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """What was done."""

    kernels: int
    is_whole: bool
    """Whether it was done to its end, now or by an earlier process."""


T = TypeVar("T")
Usual: TypeAlias = tuple[ProvedPlan, Call]


def usual_calls(num_ranks: int, profile: Profile | None = None) -> Iterator[Usual]:
    """Yield the plans that choice picks for usual calls, each with a call or two.

    Those of the first calls come one kind after the other; then one of every kind, and
    the next of every kind.
    """
    selector = Selector("cuda", profile)
    for one in _FIRST:
        yield from _plans(one, num_ranks, selector)
    for tier in (_SOON, _LATER):
        kinds = [_plans(one, num_ranks, selector) for one in tier]
        for row in itertools.zip_longest(*kinds):
            yield from (usual for usual in row if usual is not None)


def _plans(one: _Usual, num_ranks: int, selector: Selector) -> Iterator[Usual]:
    """Yield the plans of one kind of call, from small ones to large ones.

    Each with the smallest and the largest call that it serves: of several tiles the
    kernel is another one.
    """
    kind = collectives.get(one.collective)
    params = frozen({"root": 0} if kind.rooted else {})
    parts = kind.num_parts(Shape(num_ranks=num_ranks, params=dict(params)))
    asked = Question(
        executor="cuda",
        collective=one.collective,
        num_ranks=num_ranks,
        nbytes=one.up_to,
        memory=STAGED,
        in_place=True,
        params=params,
        dtypes=dtype_class(one.dtype),
    )
    served: dict[Choice, list[int]] = {}
    for nbytes in _SIZES:
        if nbytes > one.up_to:
            break
        of_size = replace(asked, nbytes=nbytes)
        for pin in (None, Beside()):  # that blocks, and that is started
            served.setdefault(selector.choose(of_size, pin), []).append(nbytes)
    for choice, sizes in _from_both_ends(list(served.items())):
        for nbytes in sorted({sizes[0], sizes[-1]}):
            count = nbytes // storage(one.dtype).itemsize // parts
            call = Call(dtype=one.dtype, op=one.op, counts=(count,) * parts)
            yield plan_of(choice, asked), call


def _from_both_ends(several: list[T]) -> Iterator[T]:
    """Yield the first, the last, the second, the last but one: scalars and buckets."""
    while several:
        yield several.pop(0)
        if several:
            yield several.pop()


def in_processes(several: int) -> Executor:
    """Return so many workers, which end with this process; no lock is theirs to share.

    Threads compile side by side, too, but hold each other up in the kernel's memory.
    """
    import multiprocessing  # here: every rank imports this module
    from concurrent.futures import ProcessPoolExecutor

    return ProcessPoolExecutor(
        several,
        multiprocessing.get_context("fork"),
        initializer=die_with_parent,
        initargs=(os.getpid(),),
    )


def compile_usual(
    num_ranks: int,
    arch: tuple[int, int] | None = None,
    *,
    workers: int | None = None,
    go_on: Callable[[], bool] = lambda: True,
    pool: Callable[[int], Executor] = in_processes,
) -> Compiled:
    """Compile the kernels of all ranks' usual calls into the cache, side by side.

    Without `arch`, for this machine's GPUs. What an earlier process has done to its end
    is not looked at again.
    """
    from concurrent.futures import wait

    from stretto.executors import cuda

    arch = cuda.arch_here() if arch is None else arch
    texts = own.texts()
    profile = Profile.parse(texts["cuda"], "the user's") if "cuda" in texts else None
    usual = __version__, texts, _FIRST, _SOON, _LATER, _shipped()
    said = repr((num_ranks, arch, cuda.toolchain(), usual))
    done = hashlib.sha256(said.encode()).hexdigest()
    mark = caches.folder("cubins") / f"ahead-{done}"
    if caches.load(mark) is not None:
        return Compiled(kernels=0, is_whole=True)
    cores = workers or max(1, len(os.sched_getaffinity(0)) - num_ranks)
    started: dict[str, Future[object]] = {}
    with pool(cores) as compiling:
        for plan, call in usual_calls(num_ranks, profile):
            for rank in range(num_ranks):
                kernels = cuda.warm(plan, call, rank=rank, arch=arch)
                for name, compile_it in kernels.items():
                    if name not in started:
                        started[name] = compiling.submit(compile_it)
            if not go_on():
                break
        left = set(started.values())
        while left and go_on():
            left = wait(left, timeout=0.5).not_done
        compiling.shutdown(cancel_futures=True)
    for one in started.values():
        if not one.cancelled():
            one.result()
    whole = go_on()
    if whole:
        caches.store(mark, b"done")
    return Compiled(kernels=len(started), is_whole=whole)


def _shipped() -> str:
    """Return the shipped rows: other rows choose other plans."""
    return repr(Profile.shipped("cuda").rules)


_running: dict[int, subprocess.Popen[bytes]] = {}
"""By number of ranks."""


def start_precompiling(num_ranks: int, *options: str) -> None:
    """Begin to compile for so many ranks, in a process that ends with this one.

    One rank of a host calls it, with more options of `stretto precompile` if there are
    any. Where there is no CUDA, that process ends at once.
    """
    if num_ranks < 2 or num_ranks in _running or os.environ.get(SWITCH) == "0":
        return
    command = [sys.executable, "-m", "stretto", "precompile"]
    command += ["--ranks", str(num_ranks), "--parent", str(os.getpid()), *options]
    paths = [p for p in sys.path if p]
    with contextlib.suppress(OSError):  # it would only have saved time
        _running[num_ranks] = subprocess.Popen(
            command,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), SWITCH: "0"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )


if hasattr(os, "register_at_fork"):  # a child's end is not its parent's
    os.register_at_fork(after_in_child=_running.clear)


@atexit.register
def _end() -> None:
    for one in _running.values():
        one.terminate()  # a compiler that it has started ends with it
    for one in _running.values():
        try:
            one.wait(0.5)
        except subprocess.TimeoutExpired:
            one.kill()
            one.wait()
    _running.clear()
