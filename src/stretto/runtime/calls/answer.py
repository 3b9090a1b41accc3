"""What a caller gets, once its call has been launched."""

from __future__ import annotations

from typing import Any

from stretto.runtime.calls.fused import Fused
from stretto.runtime.calls.requests.request import Request


def answer(request: Request, fused: Fused | None) -> Any:
    """Return a call's result, or what its epilogue made of it.

    Staged results are copied back; who is sent nothing gets zeros.
    """
    if fused is not None:
        for out in fused.outputs:
            if out.staged:
                out.write_back()
        if fused.single:
            return fused.outputs[0].given
        named = zip(fused.spec.outputs, fused.outputs, strict=True)
        return {name.name: out.given for name, out in named}
    if request.idle is not None:
        request.idle.flat[...] = 0
    result = request.out or request.idle
    if result is None:
        return None
    if result.staged:
        result.write_back()
    return result.given
