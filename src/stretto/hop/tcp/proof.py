"""Who is there: two ends prove to each other that they know the job's secret; no I/O.

    comer: greeting, nonce          server: nonce, its proof
    comer: who it is, its proof     server: one byte, welcome

Nothing of what comes is looked at before it is proved, but the greeting. The secret
never travels, and a proof is bound to both nonces, to its role and to who speaks.
"""

from __future__ import annotations

import hmac
import secrets
import struct
import sys

__all__ = ["Comer", "Refused", "Server"]

GREETING = f"stretto hop 1 {sys.byteorder}".encode().ljust(24, b"\0")
"""Of another version, or of a host with another byte order, it is another."""
NONCE, MAC = 32, 32
_WHO = struct.Struct("<3q")
_WELCOME = b"+"


class Refused(Exception):
    """The other end is none of ours; the text continues a sentence about it."""


def _prove(secret: bytes, role: bytes, *said: bytes) -> bytes:
    return hmac.new(secret, b"|".join((GREETING, role, *said)), "sha256").digest()


class Comer:
    """The end that connects, for one lane to a peer."""

    def __init__(self, secret: bytes, rank: int, peer: int, lane: int) -> None:
        self._secret, self._peer = secret, peer
        self._who = _WHO.pack(rank, peer, lane)
        self._nonce = secrets.token_bytes(NONCE)
        self.want = NONCE + MAC
        """Bytes to hear next."""
        self.is_done = False

    def begin(self) -> bytes:
        """Return what is said first."""
        return GREETING + self._nonce

    def hear(self, data: bytes) -> bytes:
        """Take as many bytes as were wanted; return the answer."""
        if self.want == 1:
            self.is_done = data == _WELCOME
            if not self.is_done:
                raise Refused("it does not let us in")
            return b""
        theirs, proof = data[:NONCE], data[NONCE:]
        peer = _WHO.pack(self._peer, 0, 0)
        right = _prove(self._secret, b"server", peer, self._nonce, theirs)
        if not hmac.compare_digest(proof, right):
            raise Refused("it does not know this job's secret, or is another rank")
        self.want = 1
        return self._who + _prove(
            self._secret, b"comer", self._nonce, theirs, self._who
        )


class Server:
    """The end that is connected to."""

    def __init__(self, secret: bytes, rank: int) -> None:
        self._secret, self._rank = secret, rank
        self._nonce, self._theirs = secrets.token_bytes(NONCE), b""
        self.want = len(GREETING) + NONCE
        self.is_done = False
        self.way = (-1, -1)
        """The rank that has come, and its lane."""

    def hear(self, data: bytes) -> bytes:
        """Take as many bytes as were wanted; return the answer."""
        if not self._theirs:
            greeting, self._theirs = data[: len(GREETING)], data[len(GREETING) :]
            if greeting != GREETING:
                raise Refused("it speaks otherwise, or is of another version")
            self.want = _WHO.size + MAC
            me = _WHO.pack(self._rank, 0, 0)
            proof = _prove(self._secret, b"server", me, self._theirs, self._nonce)
            return self._nonce + proof
        who, proof = data[: _WHO.size], data[_WHO.size :]
        right = _prove(self._secret, b"comer", self._theirs, self._nonce, who)
        if not hmac.compare_digest(proof, right):
            raise Refused("it does not know this job's secret")
        rank, peer, lane = _WHO.unpack(who)
        if peer != self._rank:
            raise Refused(f"it wants rank {peer}")
        self.way, self.is_done = (rank, lane), True
        return _WELCOME
