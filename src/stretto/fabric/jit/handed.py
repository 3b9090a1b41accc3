"""Arrays handed to compiled code once, and found again by an address.

To unpack arrays that Python hands over takes longer than many a call of compiled code,
and so does copying their descriptions from one function to the next.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import types
from numba.extending import intrinsic

__all__ = ["handing"]


def handing(kind: Any) -> tuple[Callable[..., None], Callable[[int], Any]]:
    """Return what puts values of a type to an address, and what gets them there.

    An array takes seven words, and two more for each dimension after the first. Whoever
    puts them keeps the arrays alive.
    """

    def put(typing: Any, address: Any, values: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            place = builder.inttoptr(args[0], args[1].type.as_pointer())
            builder.store(args[1], place)
            return context.get_dummy_value()

        return types.void(types.int64, kind), emit

    def get(typing: Any, address: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            pointer = context.get_value_type(kind).as_pointer()
            return builder.load(builder.inttoptr(args[0], pointer))

        return kind(types.int64), emit

    return intrinsic(put), intrinsic(get)
