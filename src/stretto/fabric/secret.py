"""The secret that ranks share when they meet over TCP: `fabric.handshake` proves it."""

from __future__ import annotations

import os
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
