"""A user's kernel that waits for a word of a transfer: in Triton."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from triton.language.extra import cuda as on_cuda

MOST = 2_000_000
"""Looks at a word before it is given up: a few seconds."""


@triton.jit
def _wait_and_copy(
    word: tl.tensor,
    seen: tl.tensor,
    came: tl.tensor,
    out: tl.tensor,
    nbytes: tl.constexpr,
    most: tl.constexpr,
    copies: tl.constexpr,
) -> None:
    """Wait for the next number in a word, and copy what has come before it."""
    on_cuda.gdc_wait()
    on_cuda.gdc_launch_dependents()
    want = tl.load(seen) + 1
    looks = tl.full([], 0, tl.int32)
    now = tl.atomic_add(word, 0, sem="acquire", scope="sys")
    while (now < want) & (looks < most):
        now = tl.atomic_add(word, 0, sem="acquire", scope="sys")
        looks += 1
    if copies:
        tl.debug_barrier()
        at = tl.arange(0, nbytes)
        tl.store(out + at, tl.load(came + at, volatile=True))
    tl.store(seen, want)
    if looks >= most:
        tl.store(seen + 1, tl.load(seen + 1) + 1)


class Waiter:
    """The kernel, what it waits for, and where it copies to."""

    def __init__(self, word: Any, came: Any, out: Any, torch: Any) -> None:
        self._word, self._came, self._out = word, came, out
        self._seen = torch.zeros(2, dtype=torch.int64, device=word.device)

    def enqueue(self, *, copies: bool) -> None:
        """Enqueue a wait for the next number."""
        self._launch(self._seen, copies)

    def _launch(self, seen: Any, copies: bool) -> None:
        size = self._came.numel()
        _wait_and_copy[(1,)](
            self._word, seen, self._came, self._out, size, MOST, copies, num_warps=1,
            launch_pdl=True,
        )  # fmt: skip

    def warm(self) -> None:
        """Compile it; it waits for a number that is there."""
        for copies in (False, True):
            self._launch(self._seen - 1, copies)

    def failures(self) -> int:
        """Return how often it waited in vain."""
        return int(self._seen[1].item())
