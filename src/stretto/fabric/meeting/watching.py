"""Watch a job from outside: by its address, or the only one of this user here."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from stretto.errors import CallError, CollectiveTimeout, StrettoError
from stretto.fabric.address import reached
from stretto.fabric.meeting.environment import ADDRESS, find_place
from stretto.fabric.meeting.greet import Unanswered, greet
from stretto.fabric.meeting.join import join
from stretto.fabric.meeting.meeting import Meeting
from stretto.fabric.messages import WATCHER
from stretto.fabric.wire import Connection

_LOOK_S, _BEGIN_S = 5.0, 60.0
"""How long one looks for a job; and waits for one that is there to begin."""


@contextmanager
def watching(address: str | None = None) -> Iterator[Meeting]:
    """Be a watcher of a job's world within a block."""
    address = address or os.environ.get(ADDRESS)
    meeting = _only() if address is None else _at(address)
    try:
        yield meeting
    finally:
        meeting.close()


def _at(address: str) -> Meeting:
    place, until = find_place(1, 2, address), time.monotonic() + _BEGIN_S
    while True:
        try:
            return join(place, deadline_s=_LOOK_S, wish=WATCHER, outlives=True)
        except Unanswered:  # its ranks may still be starting
            if time.monotonic() > until:
                raise
        except CollectiveTimeout as e:
            if place.address is not None:
                raise
            raise CallError(
                f"no job named {address!r} of this user is found here whose ranks may "
                "change; name one as `stretto launch` said it, or its tcp://HOST:PORT"
            ) from e


def _only() -> Meeting:
    """Return a part in the only job of this user on this host that takes watchers.

    While there is none, those that have not answered yet are asked again.
    """
    until = time.monotonic() + _BEGIN_S
    found, is_waiting = _answers()
    while is_waiting and not found and time.monotonic() < until:
        found, is_waiting = _answers()
    if len(found) == 1:
        return found[0]
    for meeting in found:
        meeting.close()
    if not found:
        raise CallError(
            "no job of this user is found here whose ranks may change; name one with "
            "--job: what `stretto launch` said, or its tcp://HOST:PORT"
        )
    raise CallError(f"{len(found)} jobs are found here; name one with --job")


def _answers() -> tuple[list[Meeting], bool]:
    """Return a part in every job that takes watchers; and whether some said nothing."""
    found: list[Meeting] = []
    is_waiting = False
    for sock in reached():
        try:
            found.append(
                greet(
                    Connection(sock), rank=-1, num_ranks=0,
                    deadline_s=_LOOK_S, start_s=_LOOK_S, wish=WATCHER,
                )
            )  # fmt: skip
        except Unanswered:  # its ranks may still be starting
            is_waiting = True
        except StrettoError:
            continue
    return found, is_waiting
