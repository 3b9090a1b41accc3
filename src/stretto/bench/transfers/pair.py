"""Engines for a measurement: one in this process, and some in others beside it."""

from __future__ import annotations

import uuid
from typing import Any

import numpy as np

from stretto.bench.child import Child
from stretto.transfer import Engine, Layout

_SECRET = b"measure" * 5


class EngineServer:
    """An engine in a process beside: it shares memory, and answers."""

    def __init__(self, job: str, name: str, listen: bool) -> None:
        self.engine = Engine(
            name, job=job, secret=_SECRET,
            listen="127.0.0.1:0" if listen else None,
        )  # fmt: skip
        self.held: list[Any] = []

    def about(self) -> str:
        """Return where it is."""
        return self.engine.address or self.engine.name

    def share(
        self, name: str, layout: str, parts: int, nbytes: int, where: str
    ) -> None:
        """Share memory of a layout, in an arena or not."""
        arena = self.engine.arena
        make = arena if where == "arena" else lambda n: np.ones(n, np.uint8)
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


class EnginePair:
    """An engine here, servers beside, and the connections between them."""

    def __init__(self, *, path: str = "near", servers: int = 1) -> None:
        job = f"bench-{uuid.uuid4().hex[:8]}"
        self.engine = Engine("here", job=job, secret=_SECRET)
        names = [f"there-{nth}" for nth in range(servers)]
        self.servers = [Child(n, EngineServer, job, n, path == "tcp") for n in names]
        self.peers = []
        for server in self.servers:
            server.hear()
            self.peers.append(self.engine.connect(server.ask("about")).wait(60))
        self._shared = 0

    def there(self, layout: Layout, *, where: str = "arena", nth: int = 0) -> Any:
        """Have a server share memory, and return it as it is seen from here."""
        self._shared += 1
        name = f"m{self._shared}"
        self.servers[nth].ask(
            "share", name=name, layout=str(layout), parts=layout.num_parts,
            nbytes=layout.part_bytes, where=where,
        )  # fmt: skip
        return self.peers[nth].region(name).wait(30)

    def here(self, layout: Layout, *, where: str = "arena", seed: int = 1) -> Any:
        """Share memory of random bytes here; return the region, and the arrays."""
        rng = np.random.default_rng(seed)
        some = []
        for _ in range(layout.num_parts):
            nbytes = layout.part_bytes
            array = (
                self.engine.arena(nbytes)
                if where == "arena"
                else np.empty(nbytes, np.uint8)
            )
            array[:] = rng.integers(0, 256, nbytes, dtype=np.uint8)
            some.append(array)
        given = some if layout.parts else some[0]
        return self.engine.share(given, uuid.uuid4().hex, layout), some

    def close(self) -> None:
        """End all of it."""
        for server in self.servers:
            server.close()
        self.engine.close()

    def __enter__(self) -> EnginePair:
        """Use it for a while."""
        return self

    def __exit__(self, *error: object) -> None:
        """End it."""
        self.close()
