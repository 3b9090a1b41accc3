"""Every exception of stretto: one tree, one file.

    StrettoError
    |- ProgramError            a program or plan is wrong
    |  |- PromiseError         it is not the collective it claims to be
    |  |- UndefinedError       it reads what nobody wrote
    |  |- BoundsError          it names what does not exist
    |  |- ParseError           its text cannot be read
    |  |- RanksError           it is not for so many ranks, and says so
    |  `- PlanError            the compiled form races, hangs or does not fit
    |- CallError               a call was given what it cannot take
    |  `- LayoutError          a layout is malformed, or two do not fit each other
    |- TopologyError           a machine is unknown or its file malformed
    |- UnknownNameError        no such algorithm, machine, executor...
    |- LaunchEnvironmentError  the launcher's environment cannot be read
    |- MissingExtraError       an optional dependency is not installed
    |- DeviceError             a GPU or its driver refused
    |- SharedMemoryError       this system gives processes no common memory
    |- TraceError              a recording cannot be read
    |- RankFailed              a rank started by spawn raised or died
    |- TransferError           bytes did not get from one engine to another
    |  |- TransferTimeout      not before the deadline
    |  |- TransferCancelled    somebody took it back
    |  |- StaleMemory          that memory has been given to someone else since
    |  |- ChecksumError        what arrived is not what was sent
    |  `- EngineLost           the peer, or the connection to it, is gone
    `- CommunicationError      the group cannot go on
       |- PeerLost             a rank died
       |- CollectiveTimeout    a rank did not come in time
       |- CollectiveMismatch   ranks called different things
       |- RendezvousError      ranks could not find or trust each other
       |  `- WireError         what came on a connection are no messages of ours
       |- MembershipError      too few ranks are left, or nobody may take a place
       `- CommunicatorBroken   an earlier fault ended this communicator

A message says where, what was got, what was wanted and what to do.
"""

from __future__ import annotations

import csv
import difflib
import functools
import signal
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FunctionType, MethodType
from typing import Any, Self

_LONGEST_NAME = 80
_LIBRARY = str(Path(__file__).parent)
_SIGNALS = tuple(signal.valid_signals())
_WRITTEN = "<stretto: "
"""How the names of texts begin that the library writes and compiles itself."""


def is_library(place: str) -> bool:
    """Return whether a file, or a line of it, is the library's and not the user's.

    What users are told of their calls cites lines of theirs only.
    """
    return place.startswith((_LIBRARY, _WRITTEN))


def is_interruption(error: BaseException) -> bool:
    """Return whether a signal's handler raised it: it says nothing of where it came.

    Then what a handler that is installed runs is in its traceback. Whoever turns any
    exception into one of ours, or goes on after it, asks this first.
    """
    try:
        codes = {_code(signal.getsignal(number)) for number in _SIGNALS}
        codes.discard(None)
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    except MemoryError:
        return False  # as is likely to be `error`, then
    return any(frame.f_code in codes for frame in frames)


def _code(handler: Any) -> CodeType | None:
    """Return what runs when a handler is called; None: it is none of Python's."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    if not callable(handler):
        return None  # the system's own way
    if not isinstance(handler, FunctionType | MethodType):
        handler = type(handler).__call__
    found = getattr(getattr(handler, "__func__", handler), "__code__", None)
    return found if isinstance(found, CodeType) else None


__all__ = [
    "BoundsError",
    "CallError",
    "ChecksumError",
    "CollectiveMismatch",
    "CollectiveTimeout",
    "CommunicationError",
    "CommunicatorBroken",
    "DeviceError",
    "EngineLost",
    "LaunchEnvironmentError",
    "LayoutError",
    "MembershipError",
    "MissingExtraError",
    "ParseError",
    "PeerLost",
    "PlanError",
    "ProgramError",
    "PromiseError",
    "RankFailed",
    "RanksError",
    "RendezvousError",
    "SharedMemoryError",
    "StaleMemory",
    "StrettoError",
    "TopologyError",
    "TraceError",
    "TransferCancelled",
    "TransferError",
    "TransferTimeout",
    "UndefinedError",
    "UnknownNameError",
    "WireError",
]


class StrettoError(Exception):
    """The root of every error that stretto raises on purpose."""

    where: str = ""
    """The file and line of an algorithm's author, where the error is about one."""

    def at(self, where: str) -> Self:
        """Return this error, saying once where it is: the author's file and line."""
        if where and not self.where:
            self.where = where
            self.args = (f"{where}: {self}", *self.args[1:])
        return self


class ProgramError(StrettoError):
    """A program or a plan is wrong."""


class PromiseError(ProgramError):
    """A program or plan does not compute what its collective promises."""


class UndefinedError(ProgramError):
    """A program or plan reads a chunk that nobody wrote."""


class BoundsError(ProgramError):
    """A program names a rank, buffer or chunk that does not exist."""


class ParseError(ProgramError):
    """The text of a program or plan cannot be read."""


class RanksError(ProgramError):
    """An algorithm is not for so many ranks, as its author says."""


class PlanError(ProgramError):
    """A plan races, can hang, is not closed, or does not fit."""


class CallError(StrettoError):
    """A call was given arguments it cannot take."""


class LayoutError(CallError):
    """A layout is malformed, or two layouts are not of one tensor."""


class TopologyError(StrettoError):
    """A machine file is malformed, or a machine cannot do what is asked."""


class TraceError(StrettoError):
    """A recording cannot be read, or a process has none."""


class LaunchEnvironmentError(StrettoError):
    """The environment a launcher left cannot be read or is not supported."""


class MissingExtraError(StrettoError):
    """An optional dependency is needed and not installed."""


class DeviceError(StrettoError):
    """A GPU or its driver refused, or cannot do what is asked."""


class SharedMemoryError(StrettoError):
    """This system cannot give memory that processes share."""


class RankFailed(StrettoError):
    """A rank started by `spawn` raised or died."""

    rank: int = -1
    results: dict[int, object] = {}  # noqa: RUF012 - replaced, never changed
    """What the ranks that did return gave, by rank."""


class TransferError(StrettoError):
    """Bytes did not get from one engine to another."""

    peer: str = ""
    """The engine at the other end."""
    path: str = ""
    """Which way the bytes went: `engine.explain(peer)` lists them."""
    bytes_done: int = 0
    blocks_done: int = 0
    """Blocks that have arrived in full, from the first on."""
    blocks_failed: tuple[int, ...] = ()
    """Pages of ours, where memory has pages, that are not known to be through."""


class TransferTimeout(TransferError):
    """A transfer, or a notification, did not come before its deadline."""


class TransferCancelled(TransferError):
    """A transfer was taken back."""


class StaleMemory(TransferError):
    """Memory has been given to someone else since its name was handed out."""


class ChecksumError(TransferError):
    """What arrived is not what was sent."""


class EngineLost(TransferError):
    """The peer, or the connection to it, is gone."""


class CommunicationError(StrettoError):
    """The group cannot go on; the communicator is broken afterwards."""

    blamed: tuple[int, ...] = ()
    """The world ranks whose fault it is, where that is known."""


class PeerLost(CommunicationError):
    """Another rank died."""


class CollectiveTimeout(CommunicationError):
    """Another rank did not come before the deadline."""


class CollectiveMismatch(CommunicationError):
    """Ranks called different collectives, sizes, dtypes or operators."""


class RendezvousError(CommunicationError):
    """Ranks could not find or trust one another."""


class WireError(RendezvousError):
    """The bytes on a connection are not messages of ours."""


class MembershipError(CommunicationError):
    """Too few ranks are left to go on, or nobody may take the place of one."""


class CommunicatorBroken(CommunicationError):
    """An earlier fault ended this communicator."""


class UnknownNameError(StrettoError):
    """A name is not in a catalogue; the message lists what is, the nearest first."""

    @classmethod
    def among(
        cls, kind: str, got: str, known: Iterable[str], *, meant: str = ""
    ) -> UnknownNameError:
        """Answer a wrong name with the right ones, and with what was `meant`."""
        names = sorted(known)
        text = str(got)[:_LONGEST_NAME]
        said = repr(text if isinstance(got, str) else got)[: _LONGEST_NAME + 2]
        near = difflib.get_close_matches(text.lower(), names, n=3, cutoff=0.6)
        if meant in names:
            near = [meant]
        asked = f" did you mean {near[0]}?" if near else ""
        listed = [*near, *(name for name in names if name not in near)]
        more = f" and {len(listed) - _LISTED} more" if len(listed) > _LISTED else ""
        told = ", ".join(listed[:_LISTED])
        return cls(f"no {kind} named {said};{asked} known: {told}{more}")


def refuse_other(where: str, got: object, kind: type, want: str) -> None:
    """Raise where something of another kind was given than is wanted."""
    if not isinstance(got, kind):
        said = f"a {type(got).__name__}" if got is not None else "None"
        raise CallError(f"{where}: got {said}; want {want}")


def why_unread(error: Exception) -> str:
    """Return why a file could not be read, where its name is said beside."""
    return str(getattr(error, "strerror", None) or error)


@contextmanager
def reading(kind: type[StrettoError], what: str, want: str) -> Iterator[None]:
    """Say as one error of ours what any text may do to its reader.

    Errors of that kind pass as they are; so do those of files that cannot be opened.
    """
    try:
        yield
    except kind:
        raise
    except StrettoError as e:
        said = str(e)
    except RecursionError:
        said = "it nests too deeply"
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        MemoryError,
        StopIteration,
        SyntaxError,
        TypeError,
        ValueError,
        csv.Error,
    ) as e:
        said = f"{type(e).__name__}: {' '.join(str(e).split())[:200]}"
    else:
        return
    raise kind(f"{what}: {said}; want {want}") from None


_LISTED = 48
"""Names that a message lists."""
