"""Which groups of ranks GPUs can serve."""

from __future__ import annotations

from stretto.executors.cuda.words import MAX_RANKS


def lacks(num_ranks: int) -> str:
    """Return why so many ranks cannot be served, alike on every rank, or ""."""
    if num_ranks > MAX_RANKS:
        return f"{num_ranks} ranks; the cuda executor serves {MAX_RANKS}"
    return ""
