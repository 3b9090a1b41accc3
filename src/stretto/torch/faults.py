"""Errors that are stretto's and PyTorch's at once.

Code written for torch.distributed catches RuntimeError or DistBackendError and looks
for words in a time-out's text; code written for stretto catches its classes.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist

from stretto.errors import CallError, CollectiveTimeout, StrettoError

_LATE = "stretto: Timed out waiting: "
"""torch.distributed's own tests look for " Timed out ", with the blanks."""


@functools.cache
def _class_of(kind: Any) -> Any:
    """Return the class of such an error that is torch's, too."""
    bases = (kind, dist.DistBackendError)
    words = {
        "__doc__": kind.__doc__,
        "__module__": kind.__module__,
        "__reduce__": lambda error: (_again, (kind, error.args), error.__dict__),
    }
    return type(kind.__name__, bases, words)


def _again(kind: Any, args: tuple[Any, ...]) -> Any:
    """Return an error that was pickled; its name alone names stretto's own class."""
    return _class_of(kind)(*args)


def as_torch(error: BaseException) -> BaseException:
    """Return an error of stretto as one of both families; others as they are."""
    if not isinstance(error, StrettoError) or isinstance(error, dist.DistBackendError):
        return error
    text = str(error)
    if isinstance(error, CollectiveTimeout):
        text = f"{_LATE}{text}"
    kind: Any = type(error)
    made: StrettoError = _class_of(kind)(text)
    made.__dict__.update(error.__dict__)
    made.__cause__ = error.__cause__
    return made.with_traceback(error.__traceback__)


@contextmanager
def both_families() -> Iterator[None]:
    """Raise errors of stretto as those of both families."""
    try:
        yield
    except StrettoError as e:
        raise as_torch(e) from e.__cause__


def refusal(text: str) -> BaseException:
    """Return the error of a call that cannot be served."""
    return as_torch(CallError(text))
