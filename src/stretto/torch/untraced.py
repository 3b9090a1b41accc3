"""What `torch.compile` leaves as it is: a group's and a communicator's own code.

Dynamo would trace it as if it were the user's: where compiled code calls it, and where
PyTorch does, in frames below a part that was not compiled. DDP broadcasts buffers so.
Its functions are marked, once: Dynamo calls them, and leaves what they call alone, too.
They are not wrapped, so calls cost no more. Operators are what graphs hold.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from types import FunctionType
from typing import Any, TypeVar

from torch._C import _dynamo

_What = TypeVar("_What")
_READ = {"rank", "size", "getGroupName", "getGroupDesc", "getBackendName"}
"""What one graph may ask of a group: Dynamo reads it, and no version refuses."""
_frames = _dynamo.eval_frame
_SKIP = _frames._FrameExecStrategy(
    _frames._FrameAction.SKIP,  # the frame, and all frames below it
    _frames._FrameAction.SKIP,
)


def untraced(what: _What) -> _What:
    """Let Dynamo leave a function alone, or all that a class and its bases define."""
    members = [what]
    if isinstance(what, type):
        ours = (kind for kind in what.__mro__ if kind.__module__.startswith("stretto"))
        members = [member for kind in ours for member in vars(kind).values()]
    for function in _functions(members):
        function._torchdynamo_disable = True  # type: ignore[attr-defined]
        function._torchdynamo_disable_msg = (  # type: ignore[attr-defined]
            "in one graph, call the operators of stretto.torch"
        )
        _frames.set_code_exec_strategy(function.__code__, _SKIP)
    return what


def _functions(members: list[Any]) -> Iterator[FunctionType]:
    """Return the functions in members of a class, and those that these wrap."""
    while members:
        one = members.pop()
        if isinstance(one, property):
            members += [one.fget, one.fset]
        elif isinstance(one, staticmethod | classmethod):
            members.append(one.__func__)
        elif isinstance(one, functools.partial):
            members.append(one.func)
        elif isinstance(one, FunctionType):
            home = one.__globals__.get("__name__", "stretto")  # of a verb: none
            ours = home.startswith("stretto")  # a decorator's code is everybody's
            if ours and one.__name__ not in _READ:
                yield one
            members.append(getattr(one, "__wrapped__", None))
