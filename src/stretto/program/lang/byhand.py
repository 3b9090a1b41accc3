"""The decorator that registers a kernel written by hand under a catalogue name.

What is decorated is a function over all ranks, as for `@algorithm`: it says what the
kernel computes, is proved, and gives the bits that tests compare with. The kernel is
one way to run it. Calls that the kernel does not take, and executors without a GPU, run
the program instead; so a name always serves, and gives the same result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from stretto.errors import CallError
from stretto.program.ir import Handwritten, Room
from stretto.program.lang.algorithm import Algorithm, Requires, algorithm

_registered: dict[str, Algorithm] = {}


def registered() -> dict[str, Algorithm]:
    """Return what this process has registered, by name."""
    return dict(_registered)


def _nothing(nbytes: int, num_ranks: int, blocks: int) -> int:
    return 0


def kernel(
    name: str,
    *,
    source: str | Path,
    function: str = "",
    dtypes: Sequence[str] = (),
    ops: Sequence[str] = ("sum",),
    most_bytes: int = 1 << 62,
    memory: Sequence[str] = ("staged",),
    scratch: Room | None = None,
    packets: Room | None = None,
    split: int = 1,
    requires: Requires | None = None,
    schedule: str = "",
) -> Callable[[Callable[..., None]], Algorithm]:
    """Register a CUDA kernel under a name of the catalogue.

    It decorates a function over all ranks that says what the kernel computes, rounding
    included. `source` is CUDA C++ (text, or a file) that defines
    `template <class Task> __device__ void FUNCTION(Task& task)`, FUNCTION being what is
    decorated unless `function` says otherwise; docs/guides/kernels.md says what a task
    offers. `dtypes` (none: any), `ops`, `most_bytes` of a part, `memory` and `requires`
    say which calls it takes: the program runs the others. `scratch` and `packets` are
    bytes on every rank for (bytes of a part, ranks, blocks). `schedule` has the blocks
    and threads to use where nobody pins others.
    """
    text = source.read_text() if isinstance(source, Path) else source

    def decorate(program: Callable[..., None]) -> Algorithm:
        how = Handwritten(
            source=text,
            function=function or program.__name__,
            dtypes=frozenset(dtypes),
            ops=frozenset(ops),
            most_bytes=most_bytes,
            memory=frozenset(memory),
            scratch=scratch or _nothing,
            packets=packets or _nothing,
        )
        base = algorithm(name, split=split, requires=requires)(program)
        made = replace(base, schedule=schedule, kernel=how)
        before = _registered.get(name)
        if before is not None and before.kernel != made.kernel:
            raise CallError(
                f"@kernel({name!r}): another kernel has that name; want one of its own"
            )
        _registered[name] = made
        return made

    return decorate
