"""What is said of a carrier, and to it: what it can, and what a rank's memory is.

And by which calls compiled code uses a hop (`Calls`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from stretto.fabric.jit.words import Words

MORE = 1 << 32
MOST_LANES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The memory of a rank that peers on other hosts may reach, and who it is."""

    rank: int
    num_ranks: int
    address: int
    """Where the memory begins in this process. Offsets count from there."""
    puts: tuple[int, int]
    """Offsets between which data may land."""
    words: tuple[int, int]
    """Offsets between which words may be raised."""
    secret: bytes
    """What all ranks of the job know, and nobody else."""
    towards: str = ""
    """A host that the others are reached by: it says which interface to use."""
    lanes: int = 1
    """Streams to each peer. Only what goes by one stream is in order."""
    wake: int = -1
    """A descriptor that ends a `wait`, too, when it turns readable; whoever waits reads
    it. -1: there is none."""
    rails: tuple[str, ...] = ()
    """Interfaces or addresses that lanes go by in turn; none: as routes say."""
    fields: int = 0
    """Address of the words of fields that the rank may open, see `hop.fields`."""
    num_fields: int = 0
    sources: tuple[int, int] = (0, 0)
    """Offsets between which lies what is put most often: it is registered once."""
    linger_s: float = 2.0
    """How long a close may wait until peers have taken what was begun."""

    @property
    def nbytes(self) -> int:
        """Return how many bytes from the address on a carrier may have to register."""
        return max(self.puts[1], self.words[1], self.sources[1])


class Calls(NamedTuple):
    """Addresses of the calls, for who runs without the interpreter's lock.

    Each takes two words, the context and the address of its arguments, as words; and
    returns one. They mean what the methods of a `Hop` of these names mean, and raise
    nothing.
    """

    context: int
    put: int
    """Arguments: `PutCall`."""
    signal: int
    """Arguments: `SignalCall`."""
    progress: int
    wait: int
    """Argument, instead of an address: microseconds."""
    busy: int
    """Argument, instead of an address: 0, or 1 + peer x lanes + lane."""


class PutCall(Words):
    """Words of a put's arguments."""

    PEER = 0
    LANE = 1
    """Plus MORE: it may wait for what follows."""
    SOURCE = 2
    """An address."""
    OFFSET = 3
    """Of the peer's window."""
    NBYTES = 4
    END = 5


class SignalCall(Words):
    """Words of a signal's arguments."""

    PEER = 0
    LANE = 1
    """Plus MORE: another signal to that peer follows at once, so this one may wait and
    go with it."""
    OFFSET = 2
    VALUE = 3
    SIDE = 4
    """The offset of the side words."""
    WORDS = 5
    """Three of them."""
    END = 8


class Abilities:
    """What a carrier can. Nobody asks for its name to know that: it is said here."""

    name: str
    compiled = False
    """Whether its calls need no interpreter's lock. Code that spins for a lock of its
    own may then make them while it holds that."""
    fields = False
    """Whether peers put to fields (`hop.fields`), without the window between."""
    lanes = False
    """Whether a peer may be reached by several streams; else there is one."""
    rails = False
    """Whether those go by several interfaces where a window names them."""
    encrypted = False
    """Whether it encrypts where TLS is asked for."""
    checks_puts = True
    """Whether the end that is put to sees where: with RDMA nobody asks it."""
    device_memory = False
    """Whether it reads and writes the memory of GPUs (GPUDirect)."""
    library = ""
    """What it loads of which a process takes one; carriers of one library exclude one
    another there."""
