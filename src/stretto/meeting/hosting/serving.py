"""The thread in which a rank hosts the meeting, or relays it."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from typing import Protocol

from stretto.meeting.process import start_thread


class Served(Protocol):
    """A hub, or a relay of one."""

    @property
    def is_finished(self) -> bool:
        """Whether nobody is left to serve."""

    def step(self, timeout_s: float | None = None) -> None:
        """Wait for something to happen, and deal with it."""

    def refuse_all(self, text: str) -> None:
        """Tell everybody that there is no meeting any more."""

    def close(self) -> None:
        """End all connections."""


class HubThread:
    """A hub that a rank hosts, in a daemon thread of its own."""

    def __init__(self, hub: Served) -> None:
        self.hub = hub
        self.on_end: Callable[[], None] = lambda: None
        """Called in the thread when nobody is left to serve."""
        self._thread = threading.Thread(
            target=self._run, name="stretto-hub", daemon=True
        )
        start_thread(self._thread)

    @property
    def is_over(self) -> bool:
        """Whether nobody is served any more."""
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while not self.hub.is_finished:
                self.hub.step()
        except Exception as e:  # even an error of ours must not leave them waiting
            self._give_up(f"the rendezvous failed: {type(e).__name__}: {e}")
        finally:
            self.hub.close()
            self.on_end()

    def _give_up(self, text: str) -> None:
        sys.stderr.write(f"stretto: pid {os.getpid()}: {text}\n")
        self.hub.refuse_all(text)

    def wait_finished(self, timeout_s: float) -> None:
        """Wait until everybody has left, at most so long."""
        self._thread.join(timeout_s)
