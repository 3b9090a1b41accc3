"""The secret that ranks share when they meet over TCP, and proofs of knowing it.

Each side sends a nonce and proves itself with an HMAC over both, bound to its role;
the secret itself never travels.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from stretto.errors import RendezvousError

VARIABLE = "STRETTO_SECRET_FILE"
_LEAST_BYTES = 16


def load_secret(environment: Mapping[str, str] | None = None) -> bytes:
    """Return the secret of the file that STRETTO_SECRET_FILE names."""
    env = os.environ if environment is None else environment
    name = env.get(VARIABLE, "")
    if not name:
        raise RendezvousError(
            f"a TCP address needs a secret: put at least {_LEAST_BYTES} random bytes "
            f"into a file of mode 0600 and name it in {VARIABLE}"
        )
    path = Path(name)
    try:
        secret = path.read_bytes().strip()
        mode = path.stat().st_mode & 0o777
    except OSError as e:
        raise RendezvousError(f"{VARIABLE}={name}: cannot read it: {e}") from e
    if mode & 0o077:
        raise RendezvousError(
            f"{VARIABLE}={name}: mode {mode:o} lets others read it; run chmod 600"
        )
    if len(secret) < _LEAST_BYTES:
        raise RendezvousError(
            f"{VARIABLE}={name}: {len(secret)} bytes; want at least {_LEAST_BYTES}"
        )
    return secret


def new_nonce() -> str:
    """Return a number used once."""
    return secrets.token_hex(32)


def prove(secret: bytes, role: str, *said: str) -> str:
    """Return the proof that `role` knows the secret, bound to what was said."""
    words = json.dumps((role, *said)).encode()  # any text has such a form, and one only
    return hmac.new(secret, words, "sha256").hexdigest()


def is_proof(mac: str, secret: bytes, role: str, *said: str) -> bool:
    """Return whether a proof is right."""
    wanted = prove(secret, role, *said)
    return hmac.compare_digest(mac.encode("utf-8", "replace"), wanted.encode())
