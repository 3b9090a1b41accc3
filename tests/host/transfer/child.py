"""A process with an engine that does what it is told on its standard input."""

import json
import os
import signal
import sys
import time

import numpy as np

from stretto.errors import StrettoError
from stretto.transfer import Engine
from stretto.transfer.links.words import MOST_FIELDS


class Served:
    """What a line of input may ask for."""

    def __init__(self, name, secret, listen, how):
        where = "127.0.0.1:0" if listen else None
        self.engine = Engine(name, secret=secret, listen=where, **how)
        self.arrays, self.leases = {}, {}

    def address(self):
        return self.engine.address or self.engine.name

    def share(self, name, nbytes, arena=False, layout=None, parts=1, read_only=False):
        make = self.engine.arena if arena else (lambda n: np.zeros(n, np.uint8))
        self.arrays[name] = [make(nbytes) for _ in range(parts)]
        given = self.arrays[name] if parts > 1 else self.arrays[name][0]
        self.engine.share(given, name, layout, read_only=read_only)

    def fill(self, name, seed):
        rng = np.random.default_rng(seed)
        for array in self.arrays[name]:
            array[:] = rng.integers(0, 256, array.size, dtype=np.uint8)

    def read(self, name):
        return [a.tobytes().hex() for a in self.arrays[name]]

    def sums(self, name):
        return [int(a.sum()) for a in self.arrays[name]]

    def notified(self, tag, count=1, timeout=10):
        self.engine.notified(tag.encode(), count).wait(timeout)

    def notify(self, peer, tag):
        self.engine.peer(peer).wait(10).notify(tag.encode())

    def echo(self, peer, rounds):
        """Answer so many notifications, each with two."""
        back, ping = self.engine.peer(peer).wait(10), self.engine.notified(b"ping")
        for _ in range(rounds):
            ping.wait(10)
            back.notify(b"other")
            back.notify(b"pong")

    def lease(self, name):
        self.leases[name] = self.engine.lease()
        return self.leases[name].token.hex()

    def end(self, name, timeout=5.0):
        self.leases.pop(name).end(timeout)

    def peers(self):
        return sorted(peer.name for peer in self.engine.peers.values())

    def put_to(self, peer, name, seed, nbytes):
        data = np.random.default_rng(seed).integers(0, 256, nbytes, dtype=np.uint8)
        self.engine.peer(peer).wait(10)[name][:nbytes].put(data).wait(10)

    def compute(self, seconds):
        """Compute in Python, which seldom lets other threads have the interpreter."""
        sys.setswitchinterval(seconds)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            pass
        sys.setswitchinterval(0.005)

    def unshare(self, name):
        engine = self.engine
        engine.unshare(engine.shelf.regions[name])

    def counts(self):
        """Return how many transfers are kept ready, and how many fields are open."""
        some = list(self.engine.peers.values())
        return [
            sum(len(p.link._keeps) for p in some),
            sum(MOST_FIELDS - len(p.link.fields._free) for p in some),
        ]

    def close(self):
        self.engine.close()

    def fork(self):
        """Have a child that only lives, and return its number."""
        if pid := os.fork():
            return pid
        for number in range(3):
            os.close(number)
        while True:
            signal.pause()

    def send(self, peer, topic, body):
        self.engine.peer(peer).wait(10).send(topic, body)

    def names(self, peer, last):
        """Return how many memories of a peer are known, once one of them is."""
        there = self.engine.peer(peer).wait(10)
        there.region(last).wait(20)
        return len(there.names)

    def say_many(self, peer, tag, count):
        """Send so many notifications."""
        there = self.engine.peer(peer).wait(10)
        for _ in range(count):
            there.notify(tag.encode())

    def say_and_close(self, peer, tag, count):
        """Send notifications, and be gone."""
        there = self.engine.peer(peer).wait(10)
        for _ in range(count):
            there.notify(tag.encode())
        self.engine.close()

    def say_and_end(self, peer, tag, count):
        """Send notifications, and end the process without closing anything."""
        there = self.engine.peer(peer).wait(10)
        for _ in range(count):
            there.notify(tag.encode())
        os._exit(0)


def main():
    name, secret, listen = sys.argv[1], bytes.fromhex(sys.argv[2]), sys.argv[3] == "1"
    served = Served(name, secret, listen, json.loads(sys.argv[4]))
    print(json.dumps(served.address()), flush=True)
    for line in sys.stdin:
        said = json.loads(line)
        try:
            answer = getattr(served, said.pop("do"))(**said)
        except StrettoError as e:
            answer = {"error": type(e).__name__, "text": str(e)}
        print(json.dumps(answer), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
