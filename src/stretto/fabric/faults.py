"""A fault as a value: what broke, in words, and whose fault it is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from stretto import errors

_KINDS = {
    kind.__name__: kind
    for kind in (
        errors.CallError,
        errors.CollectiveMismatch,
        errors.CollectiveTimeout,
        errors.CommunicatorBroken,
        errors.LaunchEnvironmentError,
        errors.PeerLost,
        errors.RendezvousError,
        errors.SharedMemoryError,
    )
}


_MOST_NAMED = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Why a group cannot go on; the same words on every rank that hears it."""

    error: str
    """The name of the error class."""
    text: str
    blamed: tuple[int, ...] = ()
    """World ranks."""

    def to_error(self) -> errors.StrettoError:
        """Return a fresh exception; an unknown class is a RendezvousError."""
        error = _KINDS.get(self.error, errors.RendezvousError)(self.text)
        if isinstance(error, errors.CommunicationError):
            error.blamed = self.blamed
        return error

    @classmethod
    def of(cls, error: errors.StrettoError) -> Fault:
        """Return the fault that `to_error` turns back into `error`."""
        kind = type(error).__name__
        return cls(
            error=kind if kind in _KINDS else "RendezvousError",
            text=str(error),
            blamed=getattr(error, "blamed", ()),
        )


def name_ranks(ranks: Iterable[int]) -> str:
    """Return `rank 1` or `ranks 1, 3`; of many only the first few.

    >>> name_ranks([3, 1])
    'ranks 1, 3'
    """
    found = sorted(set(ranks))
    named = ", ".join(map(str, found[:_MOST_NAMED])) or "none"
    if len(found) > _MOST_NAMED:
        named += f", ... {found[-1]} ({len(found)} in all)"
    return f"rank{'s' * (len(found) != 1)} {named}"


def lost_fault(rank: int, how: str, name: str = "") -> Fault:
    """Return the fault of a world rank that died or failed."""
    who = name or name_ranks([rank])
    text = (
        f"{who} {how}; this communicator is broken. Where ranks may change "
        "(connect(elastic=...)) go on with replace() or shrink(), else connect anew"
    )
    return Fault(error="PeerLost", text=text, blamed=(rank,))


def left_fault(
    rank: int, doing: str, name: str = "", after: Fault | None = None
) -> Fault:
    """Return the fault of a rank that closed while others still needed it.

    Where it left `after` a fault, that is what is wrong, and whose fault it is.
    """
    who = name or name_ranks([rank])
    text = f"{who} closed its communicator and will not come to {doing}"
    if after is not None:
        text += f", after a fault of another: {after.text}"
        return Fault(error=after.error, text=text, blamed=after.blamed)
    text += ". Make every rank call the same collectives before it closes"
    return Fault(error="PeerLost", text=text, blamed=(rank,))


def left_out_fault(ranks: Sequence[int], name: str = "") -> Fault:
    """Return the fault of a group of which a new generation leaves out some ranks."""
    who = name or name_ranks(ranks)
    text = (
        f"a generation of ranks has begun without {who} of this communicator; make "
        "communicators of that generation"
    )
    return Fault(error="CommunicatorBroken", text=text, blamed=tuple(ranks))


def several_hosts(hosts: Iterable[str]) -> Fault:
    """Return the fault of ranks that run on more than one host."""
    names = sorted(host.partition("/")[0] for host in hosts)
    text = (
        f"ranks run on several hosts ({', '.join(names)}), and this version joins "
        "ranks of one host only; start all of them on one host"
    )
    return Fault(error="LaunchEnvironmentError", text=text)
