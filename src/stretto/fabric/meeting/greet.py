"""Come to a meeting: say hello on a connection, and be welcomed or refused."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Sequence
from contextlib import suppress

from stretto._version import __version__
from stretto.errors import CollectiveTimeout, RendezvousError
from stretto.fabric.faults import Fault
from stretto.fabric.meeting import messages
from stretto.fabric.meeting.meeting import Meeting
from stretto.fabric.messages import RANK, WATCHER, Hello, Leave, Verdict, Welcome
from stretto.fabric.process import host_id, most_descriptors, open_pidfd
from stretto.fabric.wire import (
    Connection,
    Descriptor,
    Frame,
    Refused,
    wait_ready,
)


class HungUp(RendezvousError):
    """The hub ended the connection before it said anything."""


class Unanswered(CollectiveTimeout):
    """The hub lets one in, and says nothing: until all ranks have come, or it hangs."""


def greet(
    connection: Connection,
    *,
    rank: int,
    num_ranks: int,
    deadline_s: float,
    start_s: float,
    wish: str = RANK,
    launcher: Descriptor | None = None,
) -> Meeting:
    """Return this member's meeting once all ranks have come; raise what the hub says.

    Whatever ends the wait, the hub hears why, and the connection is given back.
    """
    try:
        hello = Hello(
            identity=secrets.token_hex(8),
            wish=wish,
            rank=rank if wish == RANK else -1,
            num_ranks=num_ranks,
            pid=os.getpid(),
            host=_here(rank),
            version=__version__,
            start_s=start_s,
            within_s=max(start_s, deadline_s),
        )
        pidfd = open_pidfd(os.getpid())
        frames = _ask(connection, hello, () if pidfd is None else (pidfd,))
        first = messages.read(frames[0])
        if isinstance(first, Welcome) and isinstance(frames[0], Frame):
            return Meeting(
                connection,
                identity=hello.identity,
                welcome=first,
                pidfds=frames[0].descriptors,
                launcher=launcher,
                deadline_s=deadline_s,
                early=frames[1:],
            )
    except BaseException as e:
        _take_leave(connection, e)
        raise
    if isinstance(first, Refused):
        why = f"rank {rank}: cannot hear what the rendezvous says: {first.why}"
        odd = RendezvousError(why)
        odd.blamed = (rank,) if first.is_ours else ()
        _take_leave(connection, odd)
        raise odd
    connection.close()
    match first:
        case Verdict(error=error, text=text, blamed=blamed):
            raise Fault(error=error, text=text, blamed=blamed).to_error()
        case other:
            said = type(other).__name__
            raise RendezvousError(f"rank {rank}: the rendezvous answered {said}")


def _here(rank: int) -> str:
    try:
        return host_id()
    except OSError as e:
        text = f"rank {rank}: cannot tell on which host it is: {e}"
        raise RendezvousError(f"{text}; {most_descriptors()}") from e


def _ask(
    connection: Connection, hello: Hello, held: Sequence[Descriptor]
) -> Sequence[Frame | Refused]:
    """Say hello and return what comes first."""
    connection.post(messages.to_body(hello), held)
    connection.trust()
    until = time.monotonic() + hello.start_s + 1.0  # the hub names the absent before
    while (left_s := until - time.monotonic()) > 0:
        wait_ready(connection, left_s)
        connection.flush()
        try:
            frames = connection.receive()
        except EOFError as e:
            raise _hung_up(hello) from e
        if frames:
            return frames
    who = "a watcher" if hello.wish == WATCHER else f"rank {hello.rank}"
    text = f"the rendezvous did not answer within {hello.start_s:g} s; its host hangs"
    if hello.wish == WATCHER:
        text += ", or its ranks have not all come yet"
    raise Unanswered(f"{who}: {text}")


def _hung_up(hello: Hello) -> HungUp:
    text = "the rendezvous hung up without a word; its host has died"
    return HungUp(f"rank {hello.rank}: {text}")


def _take_leave(connection: Connection, error: BaseException) -> None:
    why = f"gave up before all had come: {type(error).__name__}: {error}"[:1000]
    with suppress(OSError, ValueError, RendezvousError):
        connection.post(messages.to_body(Leave(failure=why)))
    connection.close()
