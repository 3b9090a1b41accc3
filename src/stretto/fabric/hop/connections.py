"""A rank's connections by a carrier: what all carriers do alike.

A hop is opened, says what peers must know, is connected, used and closed. Whatever is
asked of it out of turn raises; a child that the process forks is refused everything.
"""

from __future__ import annotations

import ctypes
import functools
import hmac
import json
import math
import select
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.errors import CommunicationError, RendezvousError
from stretto.fabric.forks import forget_in_children
from stretto.fabric.hop.base import MORE, Abilities, Calls, Window
from stretto.fabric.hop.entries import Entries
from stretto.fabric.hop.interface import address_towards

NONSENSE = "it sent what makes no sense"
_NAP_S = 50e-6
_MOST_SELECTED = 1024
"""Descriptors below this number are for `select`."""
_LANE = MORE - 1


class Hop(ABC):
    """One rank's way to its peers on other hosts, for one communicator or link.

    What is put by a lane has landed before its peer sees a later signal of that lane.
    Nothing else is in order. Whoever waits calls `progress`, for itself and its peers.
    A carrier writes the methods that begin with `do_`: they are called in turn only.
    """

    is_armed = False
    """Whether descriptors turn readable by themselves, without `arm`."""
    by = ""
    """By what the carrier goes, for who asks."""
    tended_s = math.inf
    """How often `faults` is to be asked for: connections are looked after there."""
    lingers, last_turns = True, 0
    """Whether a close goes on with what is under way, and at least how often."""

    def __init__(self, carrier: Abilities, window: Window) -> None:
        """Open it; `share` and `connect` follow."""
        self.carrier, self.window = carrier, window
        self.lanes = window.lanes if carrier.lanes else 1
        """How many streams there are to each peer."""
        self.peers: tuple[int, ...] = ()
        self.check: Callable[[], None] = lambda: None
        """Raises when waiting for peers to connect is in vain."""
        self._said: Mapping[str, Any] | None = None
        self._is_connected, self._why_not = False, ""
        self._closing = threading.Lock()
        self.ended: dict[int, str] = {}
        self._entries: Entries | None = None
        self._fence = threading.Lock()
        forget_in_children(self)

    # In turn.

    @property
    def is_usable(self) -> bool:
        """Return whether it is connected, and was not closed."""
        return self._is_connected and not self._why_not

    def require_open(self, error: type[Exception] = RendezvousError) -> None:
        """Raise if it was closed, or is of the process that forked this one."""
        if self._why_not:
            raise error(f"rank {self.window.rank}: its hop {self._why_not}")

    def _require_connected(self) -> None:
        self.require_open(CommunicationError)
        if not self._is_connected:
            raise CommunicationError(
                f"rank {self.window.rank}: its hop by {self.carrier.name} is not "
                "connected yet; call share() and connect() before"
            )

    @functools.cached_property
    def host(self) -> str:
        """Return the address of this host by which peers come to it."""
        return address_towards(self.window.towards or "127.0.0.1")

    def share(self) -> Mapping[str, Any]:
        """Return what peers must know to connect: JSON can write it."""
        self.require_open()
        if self._said is None:
            said = {
                "carrier": self.carrier.name, "host": self.host,
                "fields": self.carrier.fields and self.window.num_fields > 0,
                **self.do_share(),
            }  # fmt: skip
            self._said = {**said, "mac": self._mac(said)}
        return self._said

    def _mac(self, said: Mapping[str, Any]) -> str:
        """Return what shows that who says this knows the secret."""
        text = json.dumps({k: said[k] for k in sorted(said) if k != "mac"}).encode()
        return hmac.digest(self.window.secret, b"stretto hop 1" + text, "sha256").hex()

    def connect(
        self, shares: Sequence[Any], peers: Sequence[int], within_s: float,
        check: Callable[[], None] | None = None,
    ) -> None:  # fmt: skip
        """Connect with peers, by what each rank shares; each proves the secret.

        Raises who is not there in time, or what `check` raises.
        """
        self.require_open()
        self.check = check or self.check
        for peer in peers:
            self._believe(peer, shares[peer])
        try:
            self.do_connect(shares, peers, within_s)
        except OSError as e:
            raise RendezvousError(
                f"rank {self.window.rank} does not connect by {self.carrier.name} "
                f"with ranks {list(peers)}: {e}"
            ) from e
        self.peers = (*self.peers, *peers)
        self._is_connected = True

    def _believe(self, peer: int, said: Mapping[str, Any]) -> None:
        """Raise unless a peer goes by this carrier and knows the secret."""
        mine, theirs = self.carrier.name, said.get("carrier")
        if theirs != mine:
            raise RendezvousError(
                f"rank {peer} is reached by {theirs}, rank {self.window.rank} by "
                f"{mine}; set STRETTO_CARRIER alike everywhere"
            )
        if not hmac.compare_digest(self._mac(said), str(said.get("mac"))):
            raise RendezvousError(
                f"rank {self.window.rank} cannot reach rank {peer} on "
                f"{said.get('host')}: what it says of itself is garbled, or it does "
                "not know this job's secret; run one version of stretto everywhere"
            )

    def put(self, peer: int, lane: int, source: int, offset: int, nbytes: int) -> bool:
        """Begin to copy bytes from an address to a peer's window; False: try later.

        The source must stay as it is until it has been read: at the latest when the
        data have landed, or `busy` says that nothing is left to send. A lane plus MORE
        may wait for what follows. To a peer whose connection has ended it stays False.
        """
        self._require_connected()
        return self.do_put(peer, lane, source, offset, nbytes)

    def signal(
        self, peer: int, lane: int, offset: int, value: int, side: int,
        words: Sequence[int],
    ) -> bool:  # fmt: skip
        """Raise a word of a peer to a value, after what this lane put there before.

        Three words are stored at `side` before. False: try later.
        """
        self._require_connected()
        return self.do_signal(peer, lane, offset, value, side, words)

    def progress(self) -> int:
        """Send and receive what can be, without waiting; return whether any was."""
        return self.do_progress() if self.is_usable else 0

    def wait(self, microseconds: int) -> int:
        """Sleep until something comes, at most so long."""
        return self.do_wait(microseconds) if self.is_usable else 0

    def busy(self) -> int:
        """Return whether sources of puts are still to be read."""
        return self.do_busy(0) if self.is_usable else 0

    def arm(self) -> bool:
        """Have descriptors turn readable from now on; False: something is there."""
        return self.do_arm() if self.is_usable else True

    @property
    def descriptors(self) -> Sequence[int]:
        """Return what turns readable when something comes, for selectors."""
        return self.do_descriptors() if self.is_usable else ()

    def faults(self) -> Mapping[int, str]:
        """Return the peers whose connection has ended, and how."""
        return {**self.do_faults(), **self.ended}

    @property
    def has_ended(self) -> bool:
        """Return whether a connection has ended."""
        return bool(self.faults())

    def close(self) -> None:
        """End all connections; what was sent still arrives. Again, it does nothing."""
        if not self._closing.acquire(blocking=False) or self._why_not:
            return
        try:
            if self.lingers:
                self._linger()
            self.do_close()
        finally:
            self._why_not = "has been closed"

    def forget(self) -> None:
        """Be of no use in a forked child: the parent's connections go on."""
        self._why_not = "is of the process that forked this one"
        self.do_forget()

    def _linger(self) -> None:
        """Go on while something is under way, as long as the window lets a close."""
        until, turn = time.monotonic() + self.window.linger_s, 0
        while self.is_usable and (self.do_progress() or self.do_busy(0)):
            turn += 1
            if turn >= self.last_turns and time.monotonic() > until:
                return

    # For compiled code.

    @property
    def calls(self) -> Calls:
        """Return the same for who runs compiled code, once it is connected."""
        if self._entries is None:
            self._entries = Entries(self)
        return self._entries.calls

    def write_calls(self, words: NDArray[np.int64], at: int) -> None:
        """Write the calls into words, from one on, as `Calls` says."""
        words[at : at + len(Calls._fields)] = self.calls

    # For carriers whose calls are Python's.

    def end(self, peer: int, how: str) -> None:
        """Note how the connection with a peer has ended."""
        self.ended.setdefault(peer, how)

    def end_all(self, how: str) -> None:
        """Note that nobody can be reached any more."""
        for peer in self.peers:
            self.end(peer, how)

    def turns(self, within_s: float, expected: Sized) -> Iterator[None]:
        """Yield while somebody is expected; raise when that is late or in vain."""
        until = time.monotonic() + within_s
        while expected:
            self.check()
            if time.monotonic() > until:
                raise RendezvousError(
                    f"rank {self.window.rank}: {len(expected)} peers did not come by "
                    f"{self.carrier.name} in {within_s:.0f} s"
                )
            yield

    def lane_of(self, lane: int) -> tuple[int, bool]:
        """Return which stream a lane is, and whether what goes there may wait."""
        return (lane & _LANE) % self.lanes, bool(lane & MORE)

    def landing(self, offset: int, nbytes: int) -> memoryview | None:
        """Return the place in the window that a put goes to; None: it may not."""
        low, high = self.window.puts
        if nbytes < 0 or not low <= offset <= high - nbytes:
            return None
        at = self.window.address + offset
        return memoryview((ctypes.c_char * nbytes).from_address(at)).cast("B")

    def raise_word(self, offset: int, value: int, side: int, *words: int) -> bool:
        """Raise a word of the window, after three beside it; False: it may not be."""
        low, high = self.window.words
        if not all(low <= x < high and x % 8 == 0 for x in (offset, side, side + 16)):
            return False
        base = self.window.address
        for i, word in enumerate(words):
            ctypes.c_int64.from_address(base + side + 8 * i).value = word
        with self._fence:  # what has come is visible before the word
            flag = ctypes.c_int64.from_address(base + offset)
        flag.value = max(flag.value, value)
        return True

    # What a carrier writes.

    @abstractmethod
    def do_share(self) -> Mapping[str, Any]:
        """Return what peers must know, beside the carrier and the host."""

    @abstractmethod
    def do_connect(
        self, shares: Sequence[Any], peers: Sequence[int], within_s: float
    ) -> None:
        """Connect with peers, and call `check` now and then while that takes time."""

    @abstractmethod
    def do_put(
        self, peer: int, lane: int, source: int, offset: int, nbytes: int
    ) -> bool:
        """Begin a put."""

    @abstractmethod
    def do_signal(
        self, peer: int, lane: int, offset: int, value: int, side: int,
        words: Sequence[int],
    ) -> bool:  # fmt: skip
        """Raise a peer's word."""

    @abstractmethod
    def do_progress(self) -> int:
        """Send and receive what can be."""

    def do_wait(self, microseconds: int) -> int:
        """Sleep until a descriptor turns readable; in naps, where that is not all."""
        until = time.monotonic() + microseconds / 1e6
        numbers = [n for n in (*self.do_descriptors(), self.window.wake) if n >= 0]
        polled = [n for n in numbers if n < _MOST_SELECTED]
        while not self.do_progress():
            left = until - time.monotonic()
            if left <= 0:
                return 0
            naps = not self.is_armed or len(polled) < len(numbers) or self.do_busy(0)
            nap_s = min(left, _NAP_S) if naps else left
            if select.select(polled, [], [], nap_s)[0]:  # noqa: TID251
                return 1
        return 1

    @abstractmethod
    def do_busy(self, which: int) -> int:
        """Return whether something is to be read: anywhere, or see `Calls.busy`."""

    @abstractmethod
    def do_close(self) -> None:
        """End all connections; it may not have been connected."""

    def do_forget(self) -> None:  # noqa: B027 - most have nothing to let go of
        """Let go, in a forked child, of what the parent uses; say nothing."""

    def do_arm(self) -> bool:
        """Where nothing turns readable, nap, and say that something may be there."""
        if self.is_armed:
            return True
        time.sleep(_NAP_S)
        return False

    def do_descriptors(self) -> Sequence[int]:
        """Return nothing: there are none."""
        return ()

    def do_faults(self) -> Mapping[int, str]:
        """Return faults that nobody noted by `end`."""
        return {}
