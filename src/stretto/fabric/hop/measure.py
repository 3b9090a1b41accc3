"""Round trips between two ranks: through a hop, and on a bare socket beside it.

A trip is so many bytes and a flag there, a flag back. Both spin, and both are compiled,
so that what differs is what a hop adds.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stretto.errors import RendezvousError
from stretto.fabric import hop

MOST_BYTES = 1 << 22
_FIRST_PUT = 4096
_WITHIN_S = 10.0

Exchange = Callable[[Mapping[str, Any]], list[Mapping[str, Any]]]
"""Give a part, get those of both ranks."""


class Pair(NamedTuple):
    """One end of a pair of ranks that are connected twice."""

    rank: int
    hop: hop.Hop
    sock: socket.socket
    memory: NDArray[np.uint8]

    def close(self) -> None:
        """End both connections."""
        self.hop.close()
        self.sock.close()


def open_pair(
    exchange: Exchange, rank: int, *, towards: str, secret: bytes, carrier: str
) -> Pair:
    """Connect two ranks by a hop and by a socket (collective)."""
    memory = np.zeros(_FIRST_PUT + MOST_BYTES, dtype=np.uint8)
    window = hop.Window(
        rank=rank,
        num_ranks=2,
        address=int(memory.ctypes.data),
        puts=(_FIRST_PUT, memory.size),
        words=(0, _FIRST_PUT),
        secret=secret,
        towards=towards,
    )
    way = hop.get(carrier).open_hop(window)
    shared = way.share()
    with socket.create_server((shared["host"], 0)) as server:
        said = {"hop": shared, "port": server.getsockname()[1]}
        parts = exchange(said)
        way.connect([part["hop"] for part in parts], [1 - rank], _WITHIN_S)
        server.settimeout(_WITHIN_S)
        try:
            if rank:
                sock, _ = server.accept()
            else:
                there = parts[1]["hop"]["host"], parts[1]["port"]
                sock = socket.create_connection(there, timeout=_WITHIN_S)
        except OSError as e:
            raise RendezvousError(f"rank {rank}: no bare socket: {e}") from e
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setblocking(False)
    return Pair(rank, way, sock, memory)


def trips(pair: Pair, nbytes: int, rounds: int, *, bare: bool) -> NDArray[np.float64]:
    """Return microseconds of each round trip; rank 1 answers (collective)."""
    times = np.zeros(rounds + 1, dtype=np.int64)  # one more: a clock has two words
    source = np.zeros(max(nbytes, 1), dtype=np.uint8)
    from stretto.fabric.hop import trips as compiled

    if bare:
        compiled.by_socket(
            pair.sock.fileno(), source.ctypes.data, nbytes, 1 - pair.rank,
            times.ctypes.data, rounds,
        )  # fmt: skip
    else:
        arguments = np.zeros(compiled.TripWord.END, dtype=np.int64)
        given = 1 - pair.rank, 0, source.ctypes.data, _FIRST_PUT, nbytes
        arguments[: compiled.TripWord.SIGNAL] = given
        told = 1 - pair.rank, 0, 0, 0, 8, 0, 0, 0
        arguments[compiled.TripWord.SIGNAL : compiled.TripWord.CALLS] = told
        pair.hop.write_calls(arguments, compiled.TripWord.CALLS)
        compiled.by_hop(
            arguments.ctypes.data, pair.memory.ctypes.data, 1 - pair.rank,
            times.ctypes.data, rounds,
        )  # fmt: skip
    return _ended(pair, times, rounds)


def _ended(pair: Pair, times: NDArray[np.int64], rounds: int) -> NDArray[np.float64]:
    """Send what waits, as the last answer may, and return microseconds."""
    while pair.hop.busy() and not pair.hop.faults():
        pair.hop.progress()
    pair.memory[:8] = 0
    return times[:rounds] / 1e3
