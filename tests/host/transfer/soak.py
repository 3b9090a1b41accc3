"""An hour's worth of a transfer engine's life: puts, gets, cancels, kills, reconnects.

    python -m tests.host.transfer.soak [--seconds 600] [--seed N] [--hop tcp]

Every page of the children's memory has one owner here, who knows what it must hold: the
bytes before a transfer that failed, those after one that succeeded, or, where it was
cancelled or its peer died, any mixture of both. At the end, and whenever a page is got,
every byte is accounted for. Nothing may hang: each wait has a deadline.
"""

from __future__ import annotations

import argparse
import collections
import os
import random
import sys
import time

import numpy as np
from tests.host.transfer.conftest import SECRET, Child
from tests.soon import soon

from stretto.errors import TransferError
from stretto.transfer import Engine, Layout

PAGES, PAGE = 48, 24 << 10
LAYOUT = Layout(f"B={PAGES} X={PAGE} uint8")
WAIT = 120.0


class Page:
    """What a page of a peer may hold: at each byte one of some values."""

    def __init__(self) -> None:
        self.may = [np.zeros(PAGE, np.uint8)]

    def check(self, held: np.ndarray, what: str) -> None:
        """Raise unless each byte is one that it may be."""
        right = np.zeros(PAGE, bool)
        for one in self.may:
            right |= held == one
        if not right.all():
            at = int(np.flatnonzero(~right)[0])
            raise AssertionError(f"{what}: byte {at} is {held[at]}, of {len(self.may)}")


class Other:
    """A child, and what we know of its memory."""

    def __init__(
        self, engine: Engine, *, listen: bool, arena: bool, lanes: int = 1
    ) -> None:
        self.listen, self.arena, self.engine = listen, arena, engine
        self.lanes = lanes
        self.begin()

    def begin(self) -> None:
        """Start it, anew when it died."""
        name = f"soak-{random.getrandbits(40):x}"
        hop = self.engine.hop if self.listen else "tcp"
        self.child = Child(name, listen=self.listen, lanes=self.lanes, hop=hop)
        self.child.ask("share", name="kv", nbytes=LAYOUT.part_bytes,
                       layout=str(LAYOUT), arena=self.arena)  # fmt: skip
        self.pages = [Page() for _ in range(PAGES)]
        self.connect()

    def connect(self) -> None:
        """Connect, for the first time or again."""
        self.peer = self.engine.connect(self.child.address).wait(WAIT)
        self.region = self.peer.region("kv").wait(WAIT)


class Soak:
    """See the module."""

    def __init__(self, seed: int, hop: str = "tcp") -> None:
        self.rng = random.Random(seed)
        self.numpy = np.random.default_rng(seed)
        self.engine = Engine(f"soak-{os.getpid()}", job="", secret=SECRET, hop=hop)
        self.others = [
            Other(self.engine, listen=False, arena=True),
            Other(self.engine, listen=False, arena=False),
            Other(self.engine, listen=True, arena=False),
            Other(self.engine, listen=True, arena=True, lanes=3),
        ]
        self.counts: collections.Counter[str] = collections.Counter()

    def run(self, seconds: float) -> None:
        """Live for so long, and until somebody was killed and something prepared."""
        until = time.monotonic() + seconds
        acts = [self.put] * 12 + [self.get] * 6 + [self.cancel] * 4 + [self.many] * 4
        acts += [self.again] * 3 + [self.lease] * 2 + [self.reconnect]
        killed = time.monotonic()
        wanted = {"killed", "prepared"}
        while time.monotonic() < until or not (wanted <= self.counts.keys()):
            self.rng.choice(acts)(self.rng.choice(self.others))
            if time.monotonic() - killed > 3.0:
                self.kill(self.rng.choice(self.others))
                killed = time.monotonic()
        for other in self.others:
            self.account(other)

    def drawn(self) -> tuple[list[int], np.ndarray]:
        """Return some pages, and bytes for them."""
        pages = self.rng.sample(range(PAGES), self.rng.randint(1, 12))
        return pages, self.numpy.integers(0, 256, (len(pages), PAGE), dtype=np.uint8)

    def ours(self, array: np.ndarray):
        """Return an array as memory of pages, which peers need not hear of."""
        layout = f"B={len(array)} X={PAGE} uint8"
        region = self.engine.share(array, f"a{self.rng.getrandbits(60)}", layout)
        self.engine.shelf.regions.pop(region.name)
        self.engine.board.end(region.slot)
        return region

    def begin_put(self, other: Other, pages: list[int], data: np.ndarray, **how):
        """Begin a put from memory of ours."""
        source = self.ours(data)
        return other.region[pages].put(source, **how)

    def put(self, other: Other) -> None:
        """Put pages, sometimes summed; they are there."""
        pages, data = self.drawn()
        checksum = self.rng.random() < 0.1
        self.begin_put(other, pages, data, checksum=checksum).wait(WAIT)
        for page, bytes_ in zip(pages, data, strict=True):
            other.pages[page].may = [bytes_]
        self.counts["put"] += 1

    def many(self, other: Other) -> None:
        """Put several times at once, to different pages."""
        pages = self.rng.sample(range(PAGES), 12)
        begun = []
        for nth in range(0, 12, 3):
            data = self.numpy.integers(0, 256, (3, PAGE), dtype=np.uint8)
            begun.append((pages[nth : nth + 3], data))
        puts = [self.begin_put(other, p, d) for p, d in begun]
        self.engine.batch(*puts).wait(WAIT)
        for some, data in begun:
            for page, bytes_ in zip(some, data, strict=True):
                other.pages[page].may = [bytes_]
        self.counts["several puts"] += 1

    def get(self, other: Other) -> None:
        """Get pages; they hold what they must."""
        pages, got = self.drawn()
        target = self.ours(got)
        other.region[pages].get(target).wait(WAIT)
        for page, held in zip(pages, got, strict=True):
            other.pages[page].check(held, f"page {page} of {other.child.name}")
        self.counts["get"] += 1

    def again(self, other: Other) -> None:
        """Prepare a put and a get, and do them several times."""
        pages, data = self.drawn()
        got = np.zeros_like(data)
        source, target = self.ours(data), self.ours(got)
        put = other.region[pages].prepare_put(source, notify=b"again")
        get = other.region[pages].prepare_get(target)
        for _ in range(4):
            data[:] = self.numpy.integers(0, 256, data.shape, dtype=np.uint8)
            put()
            get()
            assert np.array_equal(data, got), "what was put is not what was got"
        other.child.ask("notified", tag="again", count=4)
        for page, bytes_ in zip(pages, data, strict=True):
            other.pages[page].may = [bytes_]
        self.counts["prepared"] += 8

    def cancel(self, other: Other) -> None:
        """Begin a put and take it back: it is there, or not, or in part."""
        pages, data = self.drawn()
        x = self.begin_put(other, pages, data)
        time.sleep(self.rng.random() * 0.002)
        x.cancel()
        try:
            x.wait(WAIT)
        except TransferError:
            self.counts["cancelled"] += 1
            for page, bytes_ in zip(pages, data, strict=True):
                other.pages[page].may.append(bytes_)
            self.settle(other, pages)
        else:
            for page, bytes_ in zip(pages, data, strict=True):
                other.pages[page].may = [bytes_]
            self.counts["too late to cancel"] += 1

    def settle(self, other: Other, pages: list[int]) -> None:
        """Read pages of which we do not know what they hold, and know it then."""
        time.sleep(0.01)
        got = np.zeros((len(pages), PAGE), np.uint8)
        target = self.ours(got)
        other.region[pages].get(target).wait(WAIT)
        for page, held in zip(pages, got, strict=True):
            other.pages[page].check(held, f"cancelled page {page}")
            other.pages[page].may = [held.copy()]

    def lease(self, other: Other) -> None:
        """Put under a lease that ends meanwhile: nothing changes after it has."""
        token = bytes.fromhex(other.child.ask("lease", name="it"))
        pages, data = self.drawn()
        x = self.begin_put(other, pages, data, lease=token)
        other.child.ask("end", name="it")
        before = other.child.ask("sums", name="kv")
        try:
            x.wait(WAIT)
            self.counts["put under a lease"] += 1
        except TransferError:
            self.counts["refused under an ended lease"] += 1
        assert before == other.child.ask("sums", name="kv"), "it changed after the end"
        for page, bytes_ in zip(pages, data, strict=True):
            other.pages[page].may.append(bytes_)
        self.settle(other, pages)

    def reconnect(self, other: Other) -> None:
        """End the connection, and connect again; memory is as it was."""
        other.peer.close()
        other.connect()
        self.counts["reconnected"] += 1

    def kill(self, other: Other) -> None:
        """Kill a child in the midst of things; each wait ends, and says who."""
        pages, data = self.drawn()
        begun = [self.begin_put(other, pages, data) for _ in range(3)]
        other.child.process.kill()
        killed = time.monotonic()
        for x in begun:
            assert x.event().wait(WAIT), "it hangs"
            assert getattr(x.error, "peer", other.child.name) == other.child.name
        while not other.peer.lost:
            time.sleep(0.001)
            assert time.monotonic() - killed < soon(2.0), "nobody noticed"
        other.child.end()
        other.begin()
        self.counts["killed"] += 1

    def account(self, other: Other) -> None:
        """Compare all of a child's memory with what it must hold."""
        held = np.frombuffer(
            bytes.fromhex(other.child.ask("read", name="kv")[0]), np.uint8
        )
        for page, one in zip(other.pages, held.reshape(PAGES, PAGE), strict=True):
            page.check(one, f"at the end, {other.child.name}")
        self.counts["bytes accounted for"] += held.size

    def close(self) -> None:
        """End everything."""
        for other in self.others:
            other.child.end()
        self.engine.close()


def main() -> int:
    """Soak, and say what was done."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=int(time.monotonic()))
    parser.add_argument("--hop", default="tcp")
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    soak = Soak(given.seed, given.hop)
    try:
        soak.run(given.seconds)
    finally:
        soak.close()
    print(", ".join(f"{n} {what}" for what, n in sorted(soak.counts.items())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
