"""A secret that rank 0 gives to every rank by a store that strangers may read.

Each rank leaves half of a key there (Diffie-Hellman, RFC 3526, group 14), and takes the
secret that rank 0 has sealed for it. Who only reads learns nothing. Who can write there
before a rank does could pass for it: against that there is the file with a secret, of
which nothing is ever stored.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable

from stretto.errors import RendezvousError

_PRIME = int(
    """
    FFFFFFFFFFFFFFFFC90FDAA22168C234C4C6628B80DC1CD129024E088A67CC74020BBEA63B139B22
    514A08798E3404DDEF9519B3CD3A431B302B0A6DF25F14374FE1356D6D51C245E485B576625E7EC6
    F44C42E9A637ED6B0BFF5CB6F406B7EDEE386BFB5A899FA5AE9F24117C4B1FE649286651ECE45B3D
    C2007CB8A163BF0598DA48361C55D39A69163FA8FD24CF5F83655D23DCA3AD961C62F356208552BB
    9ED529077096966D670C354E4ABC9804F1746C08CA18217C32905E462E36CE3BE39E772C180E8603
    9B2783A2EC07A28FB5C55DF06F4C52C9DE2BCBF6955817183995497CEA956AE515D2261898FA0510
    15728E5A8AACAA68FFFFFFFFFFFFFFFF
    """.replace("\n", "").replace(" ", ""),
    16,
)
_BITS, _MOST_DIGITS = 256, 512
_BYTES = 32
"""Of a secret, of a tag, and of what one hash gives."""

Set = Callable[[str, str], object]
Get = Callable[[str], str]


def give(num_ranks: int, key: str, set_: Set, get: Get) -> bytes:
    """Draw a secret, give it to all other ranks as they come, and return it."""
    secret, half = secrets.token_bytes(_BYTES), _half()
    set_(f"{key}/0", _spell(half))
    for rank in range(1, num_ranks):
        mask, tag = _keys(half, get(f"{key}/{rank}"), key, rank)
        sealed = bytes(a ^ b for a, b in zip(secret, mask, strict=True))
        set_(f"{key}/for/{rank}", (sealed + _tag(tag, sealed)).hex())
    return secret


def take(rank: int, key: str, set_: Set, get: Get) -> bytes:
    """Return the secret that rank 0 gives."""
    half = _half()
    set_(f"{key}/{rank}", _spell(half))
    mask, tag = _keys(half, get(f"{key}/0"), key, rank)
    try:
        found = bytes.fromhex(get(f"{key}/for/{rank}"))
    except ValueError:
        found = b""
    sealed = found[:_BYTES]
    if len(found) != 2 * _BYTES or not hmac.compare_digest(
        found[_BYTES:], _tag(tag, sealed)
    ):
        raise RendezvousError(
            f"rank {rank}: what the store says that rank 0 has sealed for it is not "
            "from rank 0: somebody else writes to this store"
        )
    return bytes(a ^ b for a, b in zip(sealed, mask, strict=True))


def _half() -> int:
    return secrets.randbits(_BITS) | 1 << _BITS


def _spell(half: int) -> str:
    return f"{pow(2, half, _PRIME):x}"


def _keys(half: int, other: str, *said: object) -> tuple[bytes, bytes]:
    """Return what to mask a secret with, and what to make its tag with."""
    try:
        theirs = int(other[:_MOST_DIGITS], 16)
    except ValueError:
        theirs = 0
    if not 1 < theirs < _PRIME - 1:
        raise RendezvousError("the store has no half of a key where a rank's should be")
    shared = repr((pow(theirs, half, _PRIME), *said)).encode()
    mask, tag = (hashlib.sha256(use + shared).digest() for use in (b"mask", b"tag"))
    return mask, tag


def _tag(key: bytes, sealed: bytes) -> bytes:
    return hmac.new(key, sealed, "sha256").digest()
