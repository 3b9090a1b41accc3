"""What stands in a group where its communicator is.

One that is gone says why. One that names algorithms has calls run by these. One that
estimates makes none: it adds up what they would take, as the simulator says. Inductor
asks so, between two moments, to see which calls hide behind what is computed beside.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.arrays import CPU, GPU
from stretto.errors import StrettoError
from stretto.torch import registry
from stretto.torch.faults import refusal
from stretto.torch.untraced import untraced

UNKNOWN = -1.0
"""What torch takes for no answer, and then asks a formula of its own."""


class GoneCommunicator:
    """What stands where a communicator was: every use says why it is gone."""

    def __init__(self, why: str) -> None:
        self._why = why

    def __getattr__(self, name: str) -> Any:
        """Raise, whatever is asked."""
        self.refuse()

    def refuse(self) -> None:
        """Raise that nothing can be called here."""
        raise refusal(self._why)


class PinnedCommunicator:
    """A communicator whose collectives are run by algorithms that the user names."""

    def __init__(self, comm: Any, algorithms: Mapping[str, Any]) -> None:
        self._comm = comm
        self.pins = {**pins_of(comm), **algorithms}
        for verb, algorithm in algorithms.items():
            for form in (verb, f"{verb}_v"):
                method = getattr(comm, form, None)
                if method is not None:
                    setattr(self, form, functools.partial(method, algorithm=algorithm))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._comm, name)


def pins_of(comm: Any) -> dict[str, Any]:
    """Return the algorithms that a communicator's calls are to have, by collective."""
    return dict(comm.pins) if type(comm) is PinnedCommunicator else {}


class Alone:
    """Answers for all ranks, of which it knows only what each has to do with it."""

    rank: int
    num_ranks: int

    def counts_of_all(self, mine: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return what ranks give and take, a row a rank, where these are this one's."""
        gives, takes = mine[: self.num_ranks], mine[self.num_ranks :]
        table = np.zeros((self.num_ranks, 2 * self.num_ranks), np.int64)
        table[:, self.rank] = takes
        table[:, self.num_ranks + self.rank] = gives
        table[self.rank] = mine
        return table

    def send_async(self, x: Any, to: int, **o: Any) -> Any:
        """Send nothing."""
        return _Over()

    def recv_async(self, out: Any, source: int, **o: Any) -> Any:
        """Receive nothing."""
        return _Over()


class _Over:
    """A call that has ended."""

    is_done = True

    def wait(self, timeout: float | None = None) -> None:
        """Return."""


@untraced
class Estimate(Alone):
    """Adds up what calls would take, each as it would be run there, started or not."""

    def __init__(self, group: Any) -> None:
        """Stand there from now on, until `end`."""
        comm = self._comm = registry.communicator(group)
        self.rank, self.num_ranks = comm.rank, comm.num_ranks
        self.deadline_s, self._us = comm.deadline_s, 0.0
        self._pins = {CPU: group.pins(started=False), GPU: group.pins(started=True)}
        self._group, self._before = group, group.stand_in(self)

    def end(self) -> float:
        """Let calls be made again; return microseconds, or UNKNOWN."""
        self._group.stand_in(self._before)
        return UNKNOWN if math.isnan(self._us) else self._us

    def check(self) -> None:
        """Have met no fault."""

    def all_reduce(self, x: Any, op: str = "sum", **o: Any) -> Any:
        """Add up its time."""
        self._add("all_reduce", x, x.numel())
        return x

    def broadcast(self, x: Any, **o: Any) -> Any:
        """Add up its time."""
        self._add("broadcast", x, x.numel())
        return x

    def all_gather(self, x: Any, *, out: Any, **o: Any) -> Any:
        """Add up its time."""
        self._add("all_gather", x, x.numel())
        return out

    def reduce_scatter(self, x: Any, op: str = "sum", *, out: Any, **o: Any) -> Any:
        """Add up its time."""
        self._add("reduce_scatter", x, x.numel() // self.num_ranks)
        return out

    def all_to_all(self, x: Any, *, out: Any, **o: Any) -> Any:
        """Add up its time."""
        self._add("all_to_all", x, x.numel() // self.num_ranks)
        return out

    def send_async(self, x: Any, to: int, **o: Any) -> Any:
        """Nothing is known of it."""
        self._us = math.nan
        return super().send_async(x, to)

    def recv_async(self, out: Any, source: int, **o: Any) -> Any:
        """Nothing is known of it."""
        self._us = math.nan
        return super().recv_async(out, source)

    def __getattr__(self, verb: str) -> Any:
        """Return a call of which nothing is known."""

        def unknown(*args: Any, **options: Any) -> None:
            self._us = math.nan

        return unknown

    def _add(self, verb: str, x: Any, count: int) -> None:
        device, kind = GPU if x.is_cuda else CPU, str(x.dtype).removeprefix("torch.")
        how = {"device": device, "algorithm": self._pins[device].get(verb)}
        try:
            self._us += self._comm.estimate(verb, count, kind, **how)
        except StrettoError:  # nor would it be run
            self._us = math.nan


class Estimating:
    """A backend of a group that torch may ask how long calls would take."""

    supports_time_estimate = True
    group: Callable[[], Any]
    """Returns the group."""
    _estimate: Estimate | None = None

    def _start_time_estimate(self) -> None:
        """Have calls of the group estimated, and not made."""
        self._estimate = Estimate(self.group())

    def _end_time_estimate(self) -> float:
        """Have them made again; return microseconds, below 0 where nobody knows."""
        made, self._estimate = self._estimate, None
        return UNKNOWN if made is None else made.end()
