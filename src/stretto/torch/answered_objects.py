"""Objects that nobody sends: what torch is about to read stays what it was.

torch sends objects as two tensors, their sizes and their bytes, both of which are ours
to fill, and reads whatever is there. No tensor says what it is for; torch's own frame
does, and has the list that is to be filled.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed import distributed_c10d as c10d

_LISTS = {
    "broadcast_object_list": "object_list",
    "recv_object_list": "object_list",
    "scatter_object_list": "scatter_object_output_list",
}
"""By torch's function, its argument that is filled."""
_MOST_FRAMES = 24
"""As many lie between torch's function and the verb of a sandbox, and some."""


def _codes() -> dict[Any, str]:
    found: dict[Any, str] = {}
    for name, argument in _LISTS.items():
        theirs: Callable[..., Any] | None = getattr(c10d, name, None)
        while theirs is not None:
            if (code := getattr(theirs, "__code__", None)) is not None:
                found[code] = argument
            theirs = getattr(theirs, "__wrapped__", None)
    return {code: one for code, one in found.items() if one in code.co_varnames}


_CODES = _codes()


def fill_with_objects(out: Any) -> bool:
    """Fill what objects are read from with those of its list; False: it is for none."""
    if not isinstance(out, torch.Tensor):
        return False
    if out.dtype not in (torch.int64, torch.uint8):
        return False
    frame = sys._getframe(1)
    for _ in range(_MOST_FRAMES):
        argument = _CODES.get(frame.f_code)
        if argument is not None:
            return _fill(out, frame.f_locals[argument], argument)
        if frame.f_back is None:
            break
        frame = frame.f_back
    return False


def _fill(out: Any, objects: Any, argument: str) -> bool:
    there = objects if argument == "object_list" else objects[:1]
    parts = [c10d._object_to_tensor(one, "cpu", None)[0] for one in there]
    if out.dtype == torch.int64:
        out.copy_(torch.tensor([len(part) for part in parts]))
    else:
        out.copy_(torch.cat(parts))
    return True
