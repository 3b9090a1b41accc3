"""The other process of a measurement: it shares memory, and answers.

Lines of JSON come in, one answer each goes out.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from typing import Any

import numpy as np

from stretto.transfer import Engine, loader

__all__ = ["main"]


class Server:
    """What lines may ask for."""

    def __init__(self, job: str, name: str, listen: bool, secret: str) -> None:
        self.engine = Engine(
            name, job=job, secret=bytes.fromhex(secret),
            listen="127.0.0.1:0" if listen else None, spin_us=1e6 if listen else 40.0,
        )  # fmt: skip
        self.held: list[Any] = []

    def about(self) -> dict[str, str]:
        """Return where it is."""
        loader.load()
        return {"name": self.engine.name, "address": self.engine.address}

    def share(
        self, name: str, layout: str, parts: int, nbytes: int, where: str
    ) -> None:
        """Share memory of a layout, in an arena or not."""
        make = self.engine.arena if where == "arena" else _private
        some = [make(nbytes) for _ in range(parts)]
        self.held.append(some)
        self.engine.share(some if parts > 1 else some[0], name, layout)

    def read(self, memory: int) -> int:
        """Return a sum of what lies in the memory that was shared so."""
        return int(sum(int(a.view(np.uint8).sum()) for a in self.held[memory]))

    def echo(self, peer: str, rounds: int) -> None:
        """Answer so many notifications."""
        back = self.engine.peer(peer).wait(10)
        ping = self.engine.notified(b"ping")
        for _ in range(rounds):
            ping.wait(30)
            back.notify(b"pong")

    def attend(self, tag: str) -> None:
        """Wait for a notification, and see to what comes meanwhile."""
        self.engine.notified(tag.encode()).wait(120)

    def cpu(self) -> float:
        """Return the seconds of processor that it has used."""
        used = resource.getrusage(resource.RUSAGE_SELF)
        return used.ru_utime + used.ru_stime

    def burn(self, seconds: float) -> None:
        """Keep a core busy."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            pass


def _private(nbytes: int) -> Any:
    return np.ones(nbytes, np.uint8)


def main() -> None:
    """Serve until the input ends."""
    job, name, listen, secret = sys.argv[1:5]
    server = Server(job, name, listen == "1", secret)
    for line in sys.stdin:
        said = json.loads(line)
        answer = getattr(server, said.pop("do"))(**said)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
