"""Come to a meeting: say hello on a connection, and be welcomed or refused."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from stretto._version import __version__
from stretto.errors import CollectiveTimeout, RendezvousError
from stretto.runtime import messages
from stretto.runtime.faults import Fault
from stretto.runtime.meeting import Meeting
from stretto.runtime.messages import Hello, Verdict, Welcome
from stretto.runtime.process import host_id, open_pidfd
from stretto.runtime.wire import Connection, Descriptor, Frame, wait_ready


def greet(
    connection: Connection,
    *,
    rank: int,
    num_ranks: int,
    deadline_s: float,
    start_s: float,
    launcher: Descriptor | None = None,
) -> Meeting:
    """Return this rank's meeting once all have come; raise what the hub says."""
    hello = Hello(
        rank=rank,
        num_ranks=num_ranks,
        pid=os.getpid(),
        host=host_id(),
        version=__version__,
    )
    pidfd = open_pidfd(os.getpid())
    try:
        connection.post(messages.to_body(hello), () if pidfd is None else (pidfd,))
    except OSError as e:
        raise RendezvousError(f"rank {rank}: the rendezvous hung up: {e}") from e
    connection.trust()
    frames = _first_frames(connection, rank, start_s)
    match messages.from_body(frames[0].body):
        case Welcome() as welcome:
            return Meeting(
                connection,
                rank=rank,
                num_ranks=num_ranks,
                welcome=welcome,
                pidfds=frames[0].descriptors,
                launcher=launcher,
                deadline_s=deadline_s,
                early=frames[1:],
            )
        case Verdict(error=error, text=text, blamed=blamed):
            connection.close()
            raise Fault(error=error, text=text, blamed=blamed).to_error()
        case other:
            connection.close()
            said = type(other).__name__
            raise RendezvousError(f"rank {rank}: the rendezvous answered {said}")


def _first_frames(connection: Connection, rank: int, start_s: float) -> Sequence[Frame]:
    until = time.monotonic() + start_s + 1.0  # the hub names the absent before
    while (left_s := until - time.monotonic()) > 0:
        wait_ready(connection, left_s)
        try:
            connection.flush()
            frames = connection.receive()
        except (EOFError, OSError) as e:
            text = "the rendezvous hung up without a word; its host has died"
            raise RendezvousError(f"rank {rank}: {text}") from e
        if frames:
            return frames
    text = f"the rendezvous did not answer within {start_s:g} s; its host hangs"
    raise CollectiveTimeout(f"rank {rank}: {text}")
