"""A process beside this one, which does what lines of JSON on a socket ask for.

    python -m stretto.bench.child MODULE:NAME DESCRIPTOR ARGUMENTS

It makes one object and calls its methods; nothing else is in it. So no two libraries
share a process, and what they print goes nowhere near the answers.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

from stretto.errors import PeerLost

_PATIENCE_S = 120.0


class LineSocket:
    """Lines of JSON, both ways, on a socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock, self._file = sock, sock.makefile("rw", encoding="utf-8")
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)

    def tell(self, said: Mapping[str, Any]) -> None:
        """Send a line."""
        self._file.write(json.dumps(said) + "\n")
        self._file.flush()

    def hear(self) -> dict[str, Any]:
        """Return the next line; empty: the other end is gone."""
        line = self._file.readline()
        return dict(json.loads(line)) if line else {}

    def has_line(self) -> bool:
        """Return whether there is one."""
        return bool(self._poll.poll(0))

    def close(self) -> None:
        """End it."""
        self._file.close()
        self._sock.close()


class Child:
    """The process, as whoever asks sees it: its first answer says that it is there."""

    def __init__(
        self, who: str, made: type, *arguments: Any,
        environment: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        """Start it, to make an object of a class by these arguments."""
        ours, theirs = socket.socketpair()
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        self._who, self._log = who, tempfile.TemporaryFile()  # noqa: SIM115
        command = [sys.executable, "-m", "stretto.bench.child",
                   f"{made.__module__}:{made.__name__}", str(theirs.fileno()),
                   json.dumps(arguments)]  # fmt: skip
        self._process = subprocess.Popen(
            command, env=env | dict(environment or {}), stdin=subprocess.DEVNULL,
            stdout=self._log, stderr=self._log, pass_fds=[theirs.fileno()],
        )  # fmt: skip
        theirs.close()
        ours.settimeout(_PATIENCE_S)
        self._lines = LineSocket(ours)

    @property
    def pid(self) -> int:
        """Return its process."""
        return self._process.pid

    def tell(self, do: str, **said: Any) -> None:
        """Have a method called; `hear` returns its answer."""
        self._lines.tell({"do": do, **said})

    def hear(self) -> Any:
        """Return what it answers; PeerLost: it failed, and how."""
        try:
            said = self._lines.hear()
        except OSError as e:
            raise PeerLost(f"{self._who}: {e}; {self._last()}") from e
        if "answer" not in said:
            why = said.get("error", "its process has ended")
            raise PeerLost(f"{self._who}: {why}; {self._last()}")
        return said["answer"]

    def ask(self, do: str, **said: Any) -> Any:
        """Have a method called, and return its answer."""
        self.tell(do, **said)
        return self.hear()

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait(10)
        self._lines.close()
        self._log.close()

    def _last(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode("utf-8", "replace").strip().splitlines()
        return f"it printed {lines[-1][:200]!r}" if lines else "it printed nothing"


def main() -> None:
    """Serve until the other end is gone."""
    made, descriptor, arguments = sys.argv[1:4]
    lines = LineSocket(socket.socket(fileno=int(descriptor)))
    try:
        module, _, name = made.partition(":")
        served = getattr(importlib.import_module(module), name)(*json.loads(arguments))
        served.lines = lines
        lines.tell({"answer": None})
        while said := lines.hear():
            answer = getattr(served, said.pop("do"))(**said)
            lines.tell({"answer": answer})
    except Exception as e:
        lines.tell({"error": f"{type(e).__name__}: {e}"})
    os._exit(0)


if __name__ == "__main__":
    main()
