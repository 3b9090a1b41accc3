"""Functions that make a call again: its caller knows that nothing else has changed.

In: a call that was just made. Out: a function that makes it again, or says that it must
be examined. Never: a question about an array, which whoever calls it has answered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from stretto.errors import CallError
from stretto.program.epilogues import Bound
from stretto.runtime.calls.known import Again
from stretto.runtime.calls.known_epilogues import find_epilogue
from stretto.runtime.calls.requests.arguments import odd
from stretto.runtime.calls.requests.layout import look
from stretto.runtime.calls.requests.verb import key_of
from stretto.runtime.choice.select import Pin


def repeated(
    self: Any, x: Any, epilogue: Any = None, *, out: Any = None
) -> Callable[[int, int, Sequence[Any]], bool] | None:
    """Return an all_reduce with an epilogue that was just made, to be made again.

    On a GPU, as a function of the addresses of `x` and the result and of what is extra:
    addresses of the epilogue's inputs and outputs, and its numbers. It returns False,
    and does nothing, where a call must be examined. None: this one must, each time.
    """
    if not isinstance(epilogue, Bound):
        raise CallError(
            f"rank {self.rank}: repeated(epilogue={type(epilogue).__name__}); want "
            f"what @epilogue made, called with its inputs, as in the call"
        )
    key = key_of("all_reduce", x, out, op="sum")
    return find_epilogue(self, key, x, out, epilogue)


def repeated_in_place(
    self: Any,
    x: Any,
    op: str = "sum",
    algorithm: Pin = None,
    stream: int | None = None,
) -> Callable[..., bool] | None:
    """Return an all_reduce in place that was just made, to be made again there.

    On a GPU. It returns False, and does nothing, where a call must be examined. Whoever
    calls it knows that an array like `x` lies at the same place. None: it must be
    examined each time. `stream`: the one it is always made on; None: whichever is
    current. Of such a one an event and another stream may be given, as handles: the
    call is then behind what that stream was given so far, and the event behind it.
    """
    found = _known(self, key_of("all_reduce", x, None, op=op, algorithm=algorithm), x)
    if found is None:
        return None
    how, place, _ = found
    if how.form.numpy or how.carry is not None or not how.form.in_place:
        return None
    return _again(self, how, place, place, stream)


def repeated_into(
    self: Any, x: Any, out: Any, op: str = "sum", algorithm: Pin = None
) -> Callable[[], bool] | None:
    """Return an all_reduce of `x` into `out` that was just made, to be made again.

    Of arrays of NumPy, which nobody reshapes meanwhile. It returns False, and does
    nothing, where a call must be examined. None: it must be examined each time.
    """
    key = key_of("all_reduce", x, out, op=op, algorithm=algorithm)
    found = _known(self, key, x, out)
    if found is None or not found[0].form.numpy or out is None or out is x:
        return None
    return _again(self, *found)


def _known(
    self: Any, key: tuple[Any, ...], x: Any, out: Any = None
) -> tuple[Again, Any, Any] | None:
    """Return how a call that was just made is made again, and what its launch takes."""
    try:
        seen = look(key, x, out, self._sessions)
        found = None if seen is None else self._calls.get(seen[0])
    except TypeError:
        raise odd(self.rank, key) from None
    return None if seen is None or found is None else (found[1], *seen[1:])


def _again(
    self: Any, how: Again, x: Any, out: Any, stream: int | None = None
) -> Callable[..., bool]:
    """Return a call to be made again, for as long as nothing has changed."""
    who = self._who  # of others nothing is known
    launch, broke = how.session.repeated(how.launch, x, out, stream), how.broke

    def again(*behind: int) -> bool:
        if self._known is not self._calls or self._who is not who:
            return False
        try:
            return launch(*behind) is not False
        except BaseException as e:
            raise broke(e) from e.__cause__

    return again
