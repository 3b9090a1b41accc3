"""NIXL between two processes: the same sizes, timed as users of it call it."""

from __future__ import annotations

import base64
import importlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from stretto.bench.transfers.pair import Times, timed
from stretto.errors import MissingExtraError

__all__ = ["main", "nixl_rows"]


def _agent(name: str) -> Any:
    api = importlib.import_module("nixl._api")
    config = api.nixl_agent_config(enable_prog_thread=False)
    return api.nixl_agent(name, config)


def nixl_rows(
    sizes: Sequence[int], paths: Sequence[str]
) -> Iterator[tuple[str, int, str, Times]]:
    """Yield what was put and got, how many bytes, by which path, and the times.

    Without its progress thread, which takes a core: its peer polls instead.
    """
    if importlib.util.find_spec("nixl") is None:
        raise MissingExtraError("no nixl: pip install nixl")
    for path in paths:
        if path == "shared":
            continue
        yield from _rows(sizes, path)


def _rows(sizes: Sequence[int], path: str) -> Iterator[tuple[str, int, str, Times]]:
    most = max(sizes)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    if path == "tcp":
        env["UCX_TLS"] = os.environ["UCX_TLS"] = "tcp,self"
    child = subprocess.Popen(
        [sys.executable, "-m", "stretto.bench.transfers.nixl", str(most)], env=env,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert child.stdout is not None
    try:
        said = _line(child.stdout)
        agent = _agent("here")
        theirs = agent.add_remote_agent(base64.b64decode(said[1]))
        mine = np.ones(most, np.uint8)
        agent.register_memory([(mine.ctypes.data, most, 0, "")], "DRAM")
        for n in sizes:
            local = agent.get_xfer_descs([(mine.ctypes.data, n, 0)], "DRAM")
            remote = agent.get_xfer_descs([(int(said[2]), n, 0)], "DRAM")
            for verb, what in (("WRITE", "put"), ("READ", "get")):
                handle = agent.initialize_xfer(verb, local, remote, theirs, b"")

                def once(agent: Any = agent, handle: Any = handle) -> None:
                    state = agent.transfer(handle)
                    while state == "PROC":
                        state = agent.check_xfer_state(handle)
                    if state != "DONE":
                        raise RuntimeError(f"NIXL says {state}")

                yield f"{what} {n}", n, path, timed(once)
                agent.release_xfer_handle(handle)
    finally:
        child.kill()
        child.wait(10)
        os.environ.pop("UCX_TLS", None)


def _line(stream: Any) -> list[str]:
    """Return the words of the line that is meant for us; others are NIXL's."""
    while line := stream.readline():
        if line.startswith("here: "):
            words: list[str] = line.split()
            return words
    raise RuntimeError("the NIXL process ended")


def main() -> None:
    """Serve memory, and poll."""
    most = int(sys.argv[1])
    agent = _agent("there")
    memory = np.zeros(most, np.uint8)
    agent.register_memory([(memory.ctypes.data, most, 0, "")], "DRAM")
    told = base64.b64encode(agent.get_agent_metadata()).decode()
    sys.stdout.write(f"here: {told} {memory.ctypes.data}\n")
    sys.stdout.flush()
    while True:
        agent.get_new_notifs()


if __name__ == "__main__":
    main()
