"""What torch calls the parts of a step, in recordings: a timeline has names.

Where recordings go to a folder, each `record_function` of torch is noted, and each
step: from the end of one `optimizer.step()` to the end of the next. Else nothing is.
"""

from __future__ import annotations

import functools
import os
import threading
import time
from typing import Any

from stretto.trace import MARKS, CallKind, observe

_MOST_NAMES = 512
_names: set[str] = set()


@functools.cache
def note_marks() -> None:
    """Note them from now on, if `STRETTO_TRACE` names a folder; once in a process."""
    if os.environ.get("STRETTO_TRACE", "") in ("", "0", "off", "no"):
        return
    from torch.autograd.profiler import record_function
    from torch.optim.optimizer import register_optimizer_step_post_hook

    begun = threading.local()
    enter, leave = record_function.__enter__, record_function.__exit__

    def entered(self: Any) -> Any:
        _stack(begun).append(time.monotonic_ns())
        return enter(self)

    def left(self: Any, *error: Any) -> Any:
        stack = _stack(begun)
        if stack:
            observe(MARKS, _kind(self.name), stack.pop())
        return leave(self, *error)

    record_function.__enter__, record_function.__exit__ = entered, left
    last = [time.monotonic_ns()]

    def stepped(*_: Any) -> None:
        observe(MARKS, _kind("step"), last[0])
        last[0] = time.monotonic_ns()

    register_optimizer_step_post_hook(stepped)


def _stack(begun: threading.local) -> list[int]:
    if not hasattr(begun, "stack"):
        begun.stack = []
    stack: list[int] = begun.stack
    return stack


def _kind(name: str) -> CallKind:
    """Return how a part is recorded; of very many names the rest share one."""
    if name not in _names:
        if len(_names) >= _MOST_NAMES:
            name = "other parts"
        _names.add(name)
    return CallKind(collective=name[:120], executor="host", text=name[:120])
