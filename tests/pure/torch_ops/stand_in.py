"""A communicator of one process, for what only has to be summed somehow."""

from types import SimpleNamespace


class Doubles:
    """Two ranks that hold the same: a sum is twice what is given, a maximum is it."""

    num_ranks, rank = 2, 0

    def __init__(self):
        self.memo = {}

    def all_reduce(self, x, op="sum", *, out=None):
        """Sum, into `out` or in place."""
        (x if out is None else out).copy_(x + x if op == "sum" else x)

    def measured(self):
        """Return up to which sizes norms are fused, on GPUs."""
        return SimpleNamespace(fused_up_to=256 << 10, fused_of_many_up_to=8 << 20)
