"""Plans as kernels and copy engines run them: made here, and proved by `verify`."""

from stretto.compiler.rewrite.batching import in_batches, in_order, sizes
from stretto.compiler.rewrite.closing import emptied, with_closing_signals
from stretto.compiler.rewrite.copying import as_copies, barrier_plan
from stretto.compiler.rewrite.halves import split

__all__ = [
    "as_copies",
    "barrier_plan",
    "emptied",
    "in_batches",
    "in_order",
    "sizes",
    "split",
    "with_closing_signals",
]
