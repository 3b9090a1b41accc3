"""Every verb as one that returns at once: a `Work`, whose `wait` gives the result.

Started calls run one after another, in the order in which they were started. A blocking
call waits for them first. The arrays belong to the call until it is done. On GPUs a
started call is enqueued where it is started, and `wait` is for the current stream.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec

from stretto.calls.unequal import UnequalVerbs
from stretto.calls.work import Work

__all__ = ["AsyncVerbs", "started"]

P = ParamSpec("P")


def started(
    verb: Callable[Concatenate[Any, P], Any],
) -> Callable[Concatenate[Any, P], Work]:
    """Return the form of a verb that starts it: the same arguments, another result."""
    name = verb.__name__

    @functools.wraps(verb)
    def start(self: Any, /, *args: P.args, **options: P.kwargs) -> Work:
        made: Work = self._start(name, getattr(self, name), *args, **options)
        return made

    start.__name__, start.__doc__ = (
        f"{name}_async",
        f"Start `{name}`; wait on its Work.",
    )
    start.__qualname__ = f"AsyncVerbs.{start.__name__}"
    start.__signature__ = inspect.signature(verb).replace(  # type: ignore[attr-defined]
        return_annotation="Work"
    )
    return start


class AsyncVerbs(UnequalVerbs):
    """The verbs, started and not waited for; arguments are those of the verb."""

    all_reduce_async = started(UnequalVerbs.all_reduce)
    reduce_async = started(UnequalVerbs.reduce)
    broadcast_async = started(UnequalVerbs.broadcast)
    all_gather_async = started(UnequalVerbs.all_gather)
    gather_async = started(UnequalVerbs.gather)
    reduce_scatter_async = started(UnequalVerbs.reduce_scatter)
    scatter_async = started(UnequalVerbs.scatter)
    all_to_all_async = started(UnequalVerbs.all_to_all)
    permute_async = started(UnequalVerbs.permute)
    barrier_async = started(UnequalVerbs.barrier)
    all_gather_v_async = started(UnequalVerbs.all_gather_v)
    gather_v_async = started(UnequalVerbs.gather_v)
    reduce_scatter_v_async = started(UnequalVerbs.reduce_scatter_v)
    scatter_v_async = started(UnequalVerbs.scatter_v)
    all_to_all_v_async = started(UnequalVerbs.all_to_all_v)
