"""Every verb as one that returns at once: a `Work`, whose `wait` gives the result.

Started calls run one after another, in the order in which they were started. A blocking
call waits for them first. The arrays belong to the call until it is done. On GPUs a
started call is enqueued where it is started, and `wait` is for the current stream.
"""

from __future__ import annotations

from typing import Any

from stretto.calls.unequal import UnequalVerbs
from stretto.calls.work import Work

__all__ = ["AsyncVerbs"]


class AsyncVerbs(UnequalVerbs):
    """The verbs, started and not waited for; arguments are those of the verb."""

    def all_reduce_async(self, x: Any, *args: Any, **options: Any) -> Work:
        """Start `all_reduce`."""
        return self._start("all_reduce", self.all_reduce, x, *args, **options)

    def reduce_async(self, x: Any, *args: Any, **options: Any) -> Work:
        """Start `reduce`."""
        return self._start("reduce", self.reduce, x, *args, **options)

    def broadcast_async(self, x: Any, **options: Any) -> Work:
        """Start `broadcast`."""
        return self._start("broadcast", self.broadcast, x, **options)

    def all_gather_async(self, x: Any, **options: Any) -> Work:
        """Start `all_gather`."""
        return self._start("all_gather", self.all_gather, x, **options)

    def gather_async(self, x: Any, **options: Any) -> Work:
        """Start `gather`."""
        return self._start("gather", self.gather, x, **options)

    def reduce_scatter_async(self, x: Any, *args: Any, **options: Any) -> Work:
        """Start `reduce_scatter`."""
        return self._start("reduce_scatter", self.reduce_scatter, x, *args, **options)

    def scatter_async(self, x: Any = None, **options: Any) -> Work:
        """Start `scatter`."""
        return self._start("scatter", self.scatter, x, **options)

    def all_to_all_async(self, x: Any, **options: Any) -> Work:
        """Start `all_to_all`."""
        return self._start("all_to_all", self.all_to_all, x, **options)

    def permute_async(self, x: Any, pairs: Any, **options: Any) -> Work:
        """Start `permute`."""
        return self._start("permute", self.permute, x, pairs, **options)

    def barrier_async(self, **options: Any) -> Work:
        """Start `barrier`."""
        return self._start("barrier", self.barrier, **options)

    def all_gather_v_async(self, x: Any, *args: Any, **options: Any) -> Work:
        """Start `all_gather_v`."""
        return self._start("all_gather_v", self.all_gather_v, x, *args, **options)

    def gather_v_async(self, x: Any, *args: Any, **options: Any) -> Work:
        """Start `gather_v`."""
        return self._start("gather_v", self.gather_v, x, *args, **options)

    def reduce_scatter_v_async(self, x: Any, *args: Any, **options: Any) -> Work:
        """Start `reduce_scatter_v`."""
        return self._start(
            "reduce_scatter_v", self.reduce_scatter_v, x, *args, **options
        )

    def scatter_v_async(self, x: Any, *args: Any, **options: Any) -> Work:
        """Start `scatter_v`."""
        return self._start("scatter_v", self.scatter_v, x, *args, **options)

    def all_to_all_v_async(self, x: Any, *args: Any, **options: Any) -> Work:
        """Start `all_to_all_v`."""
        return self._start("all_to_all_v", self.all_to_all_v, x, *args, **options)
