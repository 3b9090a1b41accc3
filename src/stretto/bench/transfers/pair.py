"""Two processes for a measurement: this one, and one that serves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from typing import Any

import numpy as np

from stretto.transfer import Engine, Layout, loader

__all__ = ["Pair", "Times", "timed"]

_SECRET = b"measure" * 5


class Times:
    """Seconds of many rounds."""

    def __init__(self, seconds: list[float]) -> None:
        self.seconds = sorted(seconds)

    @property
    def median(self) -> float:
        """Return the one in the middle."""
        return self.seconds[len(self.seconds) // 2]

    def at(self, part: float) -> float:
        """Return the one that so large a part of all is quicker than."""
        return self.seconds[min(len(self.seconds) - 1, int(part * len(self.seconds)))]


def timed(call: Callable[[], Any], *, budget_s: float = 0.5, least: int = 5) -> Times:
    """Time a call until the budget is spent, after some to warm up."""
    for _ in range(3):
        call()
    seconds: list[float] = []
    until = time.perf_counter() + budget_s
    while len(seconds) < least or time.perf_counter() < until:
        begun = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - begun)
    return Times(seconds)


class Pair:
    """An engine here, a server beside, and the connection between them."""

    def __init__(self, *, path: str = "near", servers: int = 1) -> None:
        job = f"bench-{uuid.uuid4().hex[:8]}"
        far = path == "tcp"
        self.engine = Engine("here", job=job, secret=_SECRET)
        loader.load()
        self._children = []
        self.peers = []
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        for nth in range(servers):
            name = f"there-{nth}"
            self._children.append(
                subprocess.Popen(
                    [sys.executable, "-m", "stretto.bench.transfers.serve", job, name,
                     str(int(far)), _SECRET.hex()],
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env,
                )
            )  # fmt: skip
        for nth in range(servers):
            about = self.ask(nth, do="about")
            where = about["address"] if far else about["name"]
            self.peers.append(self.engine.connect(where).wait(60))
        self._shared = [0] * servers

    @property
    def peer(self) -> Any:
        """Return the first server."""
        return self.peers[0]

    def tell(self, nth: int = 0, **said: Any) -> None:
        """Ask a server for something; `hear` returns the answer."""
        stdin = self._children[nth].stdin
        assert stdin is not None, "it is a pipe"
        stdin.write(json.dumps(said) + "\n")
        stdin.flush()

    def hear(self, nth: int = 0) -> Any:
        """Return what a server answers."""
        stdout = self._children[nth].stdout
        assert stdout is not None, "it is a pipe"
        return json.loads(stdout.readline())

    def ask(self, nth: int = 0, **said: Any) -> Any:
        """Ask a server, and return what it answers."""
        self.tell(nth, **said)
        return self.hear(nth)

    def there(self, layout: Layout, *, where: str = "arena", nth: int = 0) -> Any:
        """Have a server share memory, and return it as it is seen from here."""
        name = f"m{self._shared[nth]}"
        self._shared[nth] += 1
        self.ask(
            nth, do="share", name=name, layout=str(layout), parts=layout.num_parts,
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

    def pid(self, nth: int = 0) -> int:
        """Return a server's process."""
        return self._children[nth].pid

    def close(self) -> None:
        """End all of it."""
        for child in self._children:
            child.kill()
            child.wait(10)
            for pipe in (child.stdin, child.stdout):
                if pipe is not None:
                    pipe.close()
        self.engine.close()

    def __enter__(self) -> Pair:
        """Use it for a while."""
        return self

    def __exit__(self, *error: object) -> None:
        """End it."""
        self.close()
