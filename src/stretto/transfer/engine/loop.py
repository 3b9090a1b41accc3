"""An engine's one loop: its thread sleeps until a peer, a socket or a deadline stirs.

Whoever waits looks for itself first, for some microseconds, and takes what has come:
so what is quick needs no second thread. Then it sleeps in the thread's place, for some
milliseconds: what comes wakes it, and nobody else. Who waits longer is woken by this
thread. While others look, peers need not wake anybody; this thread makes sure every
half millisecond that nothing is left lying.

Peers of this host ring a bell of their own, which this thread hears only while nobody
sleeps in its place. Whoever takes records there, or ends what another thread may sleep
for, says so (`stir`).
"""

from __future__ import annotations

import itertools
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from stretto.errors import EngineLost, is_interruption
from stretto.fabric import loop as fabric
from stretto.fabric.channel.words import Attention
from stretto.fabric.forks import Refuses
from stretto.fabric.workers import Workers
from stretto.transfer.engine.watch import LinkWatch, doze
from stretto.transfer.links.words import Look, Nap, Said
from stretto.transfer.loader import functions
from stretto.transfer.ports import Endable, Taker

__all__ = ["LinkLoop"]

_HOT_S, _HOT_LOOK_S = 0.004, 0.0005
_STUCK_S = 0.001
_HELP_S, _HELP_BY_PYTHON_S, _ALONE_NS = 0.0002, 0.001, 5000
_REST_S = 0.02
"""How long who waits sleeps in the thread's place: waking both would cost more."""
_LONGEST_NAP_US, _NEVER = 60_000_000, -(1 << 62)


class LinkLoop(fabric.Loop):
    """See the module."""

    def __init__(self, name: str, spin_us: float) -> None:
        super().__init__(f"stretto-transfer-{name}")
        self._takers: tuple[Taker, ...] = ()
        self._spin_ns = int(1e3 * spin_us) if (os.cpu_count() or 1) > 1 else 0
        self._wake_poll = select.poll()
        self._wake_poll.register(self.wake_fd, select.POLLIN)
        self._link_bell = _made_bell()
        if self._link_bell >= 0:
            self.watch(self._link_bell, self._hear_link_bell)
        self._stirs = itertools.count(1)
        self._attention = np.zeros(Attention.END, np.int64)
        self._attention[Attention.SPIN_NS] = max(self._spin_ns, 1000)
        self._attention[Attention.ALONE_NS] = _ALONE_NS
        self._attention[Attention.FAR_SPIN_NS] = self._spin_ns
        self._attention[Attention.SOON] = 0 if self._spin_ns else _NEVER
        self.attention = int(self._attention.ctypes.data)
        """Address of the words that say whether others look."""
        self.glance: Callable[[int, int], int] = _see_nothing
        """Look for a notification for a moment; 1: it came, and is taken."""
        self._held: deque[Any] = deque(maxlen=64)  # somebody may look at an old table
        self._set(())
        self._draining: dict[int, threading.RLock] = {}
        self._looks, self._looked = 0, 0.0
        self._refusal: EngineLost | None = None
        self._mover = Workers(f"{self.name}-mover")
        self.move = self._mover.give
        """Have a thread beside the loop's call something that takes long."""
        self.apart = self._mover.apart
        """Have a thread of its own call something that waits for others."""

    def forget(self, error: EngineLost | None = None) -> None:
        """Be of no use in a child that this process forks: it has no thread there."""
        self._set(())
        first = self._refusal or EngineLost("this process was forked from its own")
        self._refusal = error or first
        self.glance = Refuses(self._refusal)
        super().forget()

    def check(self) -> None:
        """Raise in a child that was forked from the engine's process."""
        if self._refusal is not None:
            raise self._refusal

    # Links.

    def add(self, taker: Taker) -> None:
        """Listen to a link."""
        with self._lock:
            self._draining[id(taker)] = taker.link.taking
            self._set((*self._takers, taker))
        taker.link.asleep[0] = not self._attention[Attention.IS_HOT]
        for number in self._selected(taker):
            self.watch(number, _nothing)
        self.wake()

    def _selected(self, taker: Taker) -> Sequence[int]:
        """Return what a hop has to be polled that compiled functions do not poll."""
        hop = taker.link.hop
        return () if hop is None or taker.link.wakes else hop.descriptors

    def remove(self, taker: Taker) -> None:
        """Listen to it no more."""
        with self._lock:
            self._set(tuple(t for t in self._takers if t is not taker))
            self._draining.pop(id(taker), None)
        for number in self._selected(taker):
            self.unwatch(number)

    def _set(self, takers: tuple[Taker, ...]) -> None:
        self._takers = takers
        links = [taker.link for taker in takers]
        self._watch = LinkWatch(links)
        self._compiled = [link for link in links if link.by_python is None]
        """Those that compiled functions look at."""
        table = np.zeros(Look.LINKS + len(self._compiled), np.int64)
        table[Look.SPIN_NS], table[Look.COUNT] = self._spin_ns, len(self._compiled)
        table[Look.ATTENTION] = self.attention
        table[Look.FAR] = sum(link.hop is not None for link in self._compiled)
        table[Look.LINKS :] = [link.at for link in self._compiled]
        rest = self._made_rest(takers)
        table[Look.REST] = 0 if rest is None else rest[0].ctypes.data
        self._held.append(table)
        self.look_at = int(table.ctypes.data)
        self._choose_glance()
        self._nap = self._made_nap(takers)
        self._looked_at = self.look_at, table, links, rest
        """What somebody looks at, and sleeps by: he keeps it meanwhile."""
        self.stir()

    def _made_rest(self, takers: tuple[Taker, ...]) -> Any:
        """Return what one sleeps by in our place, if what comes by any link wakes."""
        wakes = all(t.link.hop is None or t.link.wakes for t in takers)
        may = takers and wakes and self._spin_ns and self._link_bell >= 0
        return self._made_nap(takers, self._link_bell) if may else None

    def stir(self) -> None:
        """Have who sleeps in our place see whether what it waits for has ended."""
        # Another number each time, whoever else says so at this very moment.
        self._attention[Attention.TAKEN] = next(self._stirs)
        functions().fence_now()  # who is about to sleep sees it, or we see him
        if self._attention[Attention.RESTING] and self._link_bell >= 0:
            with suppress(BlockingIOError):
                os.eventfd_write(self._link_bell, 1)

    @property
    def link_bell(self) -> int:
        """Return what peers of this host ring when they have something."""
        return self.wake_fd if self._link_bell < 0 else self._link_bell

    def _hear_link_bell(self) -> None:
        if self._attention[Attention.RESTING]:
            return  # it is rung for who sleeps in our place: he has not heard it yet
        with suppress(BlockingIOError):
            os.eventfd_read(self._link_bell)

    def close(self) -> None:
        """Give back what it holds."""
        with self._lock:
            bell, self._link_bell = self._link_bell, -1
        super().close()
        if bell >= 0:
            os.close(bell)

    def _made_nap(self, takers: tuple[Taker, ...], bell: int = -1) -> Any:
        """Return the words of a sleep; None: there is nothing that would end it."""
        far = [t.link for t in takers if t.link.wakes]
        pairs = [(n, link.at) for link in far for n in link.hop.descriptors]
        if bell < 0 and not pairs:
            return None
        number = self.number if bell < 0 else bell
        polled = np.array([number, *(n for n, _ in pairs)], np.int64)
        owners = np.array([0, *(at for _, at in pairs)], np.int64)
        nap = np.zeros(Nap.END, np.int64)
        nap[Nap.ATTENTION], nap[Nap.COUNT] = self.attention, len(polled)
        nap[Nap.OWNERS], nap[Nap.POLLED] = owners.ctypes.data, polled.ctypes.data
        return nap, polled, owners, far

    def drain(self) -> bool:
        """Deal with all records that have come; return whether there were any."""
        found = False
        for taker in self._takers:
            lock = self._draining.get(id(taker))
            if lock is None or not lock.acquire(blocking=False):
                continue
            try:
                taker.link.progress()
                for record in taker.link.records():
                    found = True
                    taker.take(record)
                taker.pump()
            except Exception as e:
                if is_interruption(e):
                    raise
                taker.lose(f"what it sent makes no sense: {type(e).__name__}: {e}")
            finally:
                lock.release()
        if found:
            self.stir()
        return found

    # Waiting.

    @property
    def taken(self) -> int:
        """Return what changes when records are taken, or something ends.

        It is read before whoever waits sees that he has to.
        """
        return int(self._attention[Attention.TAKEN])

    def look(self, number: int, taken: int, until: float | None = None) -> int:
        """Look for records for a while; see `await_record` and the module.

        `taken` was read before.
        """
        found: int = self._watched() if self._watch else 0
        if found or (self._watch and not self._compiled):
            return found
        rest_s = _REST_S
        if until is not None:
            rest_s = max(0.0, min(rest_s, until - time.monotonic()))
        call, rest_ns = functions().await_record, int(1e9 * rest_s)
        looked_at = self._looked_at
        found = call(looked_at[0], number, taken, rest_ns)
        while found == Said.COLD:
            self.heat()
            looked_at = self._looked_at
            found = call(looked_at[0], number, taken, rest_ns)
        return found

    def _watched(self) -> int:
        """Look at the links that Python looks at."""
        if not self._attention[Attention.IS_HOT]:
            self.heat()
        self._attention[Attention.LOOKS] += 1
        is_all = not self._compiled
        return 2 * self._watch.look(1e-9 * self._spin_ns if is_all else 0.0)

    def heat(self) -> None:
        """Let peers know that they need not wake anybody, and our thread, too."""
        self._looked = time.monotonic()
        self._attention[Attention.IS_HOT] = 1
        for taker in self._takers:
            taker.link.asleep[0] = 0
        self.wake()

    def _choose_glance(self) -> None:
        """Looking is for who has a core for it; the lock is kept on one host only."""
        if not self._spin_ns or not self._compiled:
            self.glance = _see_nothing
            return
        compiled = functions()
        is_near = all(link.hop is None for link in self._compiled)
        look = compiled.glance if is_near else compiled.glance_far
        self.glance = compiled.direct(look)

    def spin_for(
        self, number: int, tag: bytes, counts: Any, until: float | None
    ) -> bool:
        """Look for a notification for a while; return whether it was taken."""
        if not self._takers or not self._spin_ns:
            return False
        for _ in range(64):
            taken = self.taken
            if counts.take(tag, 1):
                return True
            said = self.look(number, taken, until)
            if said == 1:
                return True
            if said == 0:
                break
            self.drain()
        self._rest()
        return bool(counts.take(tag, 1))

    def _rest(self) -> None:
        """Have our thread hear peers again, and see that nothing came before that."""
        self._attention[Attention.IS_HOT] = 0
        for taker in self._takers:
            taker.link.asleep[0] = 1
        functions().fence_now()
        self.wake()
        self.drain()

    def wait_for(self, pending: Endable, until: float | None) -> bool:
        """Wait until something has ended; return whether it has."""
        if self.is_here:
            return self._turn_until(pending, until)
        if self._takers and self._spin_ns:
            help_s = _HELP_BY_PYTHON_S if self._watch else _HELP_S
            end = time.monotonic() + help_s
            pending.then(self.stir)
            taken = self.taken
            while not pending.done():  # once at least, however late this thread is
                if self.look(0, taken, until):
                    end = time.monotonic() + help_s
                taken = self.taken
                self.drain()
                if time.monotonic() >= end:
                    break
            if not pending.done():
                self._rest()
        left = None if until is None else max(0.0, until - time.monotonic())
        return pending.done() or pending.event().wait(left)

    def _turn_until(self, pending: Endable, until: float | None) -> bool:
        while not pending.done():
            if until is not None and time.monotonic() >= until:
                return False
            self.step(0.001)
        return True

    # The thread.

    def start(self, *_: Any) -> None:
        """Start the thread."""
        super().start(last=self._mover.stop)

    def fail(self, error: Exception) -> None:
        """Lose all peers: nobody may wait for what will not come."""
        super().fail(error)
        for taker in self._takers:
            taker.lose(f"this engine failed: {type(error).__name__}: {error}")

    def before_sleep(self, now: float, wait: float) -> float:
        """Sleep as links allow; return how long to wait for descriptors after that."""
        is_hot = self._is_hot(now)
        if is_hot:
            wait = min(wait, _HOT_LOOK_S)
        else:
            for taker in self._takers:
                taker.link.asleep[0] = 1
            functions().fence_now()
            if any(taker.link.has_records for taker in self._takers):
                wait = 0.0
        waits = any(taker.waits for taker in self._takers)
        if waits or any(taker.link.is_stuck for taker in self._takers):
            wait = min(wait, _STUCK_S)
        wait = self._watch.nap_s(now, wait, is_hot=is_hot)
        if self._tasks or not all(taker.link.arm() for taker in self._takers):
            wait = 0.0
        if self._watch.is_fine(wait):
            doze(self.wake_fd if is_hot else self.number, wait)
            wait = 0.0
        elif is_hot and wait:
            # Whoever looks for itself also looks at sockets: they shall not wake us.
            self._wake_poll.poll(1e3 * wait)
            wait = 0.0
        nap = self._nap
        if nap is not None and wait != 0.0 and not waits:  # room comes as no record
            most_us = min(_LONGEST_NAP_US, int(1e6 * wait) + 1)
            functions().slumber(int(nap[0].ctypes.data), most_us)
            wait = 0.0
        return wait

    def after_tasks(self) -> None:
        """Deal with what has come by links."""
        self.drain()

    def _is_hot(self, now: float) -> bool:
        """Return whether somebody looked a short while ago."""
        looks = int(self._attention[Attention.LOOKS])
        rests = bool(self._attention[Attention.RESTING])
        if rests:
            self._attention[Attention.IS_HOT] = 1
        if rests or looks != self._looks:
            self._looks, self._looked = looks, now
        if now - self._looked > _HOT_S:
            self._attention[Attention.IS_HOT] = 0
        return bool(self._attention[Attention.IS_HOT])

    def stop(self) -> None:
        """End the thread, and wait until it has ended."""
        self.call(super().stop)  # what it was asked to do before is done before
        self.join(5.0)


def _made_bell() -> int:
    """Return what peers of this host ring; -1: they ring the loop's own."""
    has = hasattr(os, "eventfd")
    return os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK) if has else -1


def _see_nothing(look: int, number: int) -> int:
    """Find nothing: a longer look follows."""
    return 0


def _nothing() -> None:
    """Do nothing: links are looked at in every turn."""
