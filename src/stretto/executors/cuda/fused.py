"""Launches of kernels with an epilogue: more addresses in their parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stretto.epilogues import Spec
from stretto.errors import CallError
from stretto.executors.cuda.arrays import pointer
from stretto.executors.cuda.bound import KernelLaunch
from stretto.executors.cuda.epilogue import words
from stretto.executors.cuda.launch import Arguments

__all__ = ["FusedLaunch"]

KEPT = 512
"""Sets of an epilogue's arrays whose parameters are kept."""


class FusedLaunch(KernelLaunch):
    """Run one kernel on (input, output) and what its epilogue reads and writes."""

    def __init__(self, *args: Any, epilogue: Spec, **options: Any) -> None:
        super().__init__(*args, **options)
        self._epilogue = epilogue
        self._sets_of_arrays: dict[tuple[int, ...], Arguments] = {}

    def __call__(
        self, x: Any, out: Any = None, stream: Any = None, *, extra: Sequence[Any] = ()
    ) -> None:
        """Enqueue the collective on the caller's stream, and return at once."""
        handle = self.begin(stream)
        key = (handle, *words(self._epilogue, extra))
        arguments = self._sets_of_arrays.get(key)
        if arguments is None:
            if len(self._sets_of_arrays) >= KEPT:
                self._sets_of_arrays.clear()
            arguments = Arguments(self.packed(handle, key[1:]), self._bind)
            self._sets_of_arrays[key] = arguments
        pair = (pointer(x), pointer(out))
        found = arguments.kept.get(pair)
        if found is None:
            self._check(out)
            found = arguments.pack(*pair)
        self.enqueue(handle, found)

    def forget(self) -> None:
        """Look up anew where arrays lie: what was registered has changed."""
        super().forget()
        self._sets_of_arrays.clear()

    def _check(self, out: Any) -> None:
        """Refuse a result that rows of whole cells cannot be read from."""
        spec, at = self._epilogue, pointer(out)
        if spec.row and spec.row % spec.cell == 0 and at % 16:
            raise CallError(
                f"epilogue: the collective's result begins {at % 16} bytes after a "
                "multiple of 16, and rows are moved by 16 bytes; pass a copy as out="
            )
