"""How one operation of a program is printed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # it prints its operations by this
    from stretto.program.ir.program import Op


def spell_op(op: Op) -> str:
    """Return one operation as it is printed."""
    ways = op.via or (None,) * len(op.srcs)
    srcs = [
        str(src) if via is None else f"{src} via {'>'.join(via) or '-'}"
        for src, via in zip(op.srcs, ways, strict=True)
    ]
    if len(srcs) == 2 and op.srcs[0] == op.dst and ways[0] is None:
        return f"{op.dst} += {srcs[1]}"
    return f"{op.dst} = {' + '.join(srcs)}"
