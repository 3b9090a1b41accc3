"""Which groups of ranks GPUs can serve."""

from __future__ import annotations

import importlib.util

from stretto.executors.cuda.codegen.abi import MAX_RANKS

__all__ = ["lacks"]


def lacks(num_ranks: int, *, several_hosts: bool) -> str:
    """Return why so many ranks cannot be served, alike on every rank, or ""."""
    if num_ranks > MAX_RANKS:
        return f"{num_ranks} ranks; the cuda executor serves {MAX_RANKS}"
    if several_hosts and importlib.util.find_spec("numba") is None:
        return "GPU ranks on several hosts need Numba: pip install 'stretto[cpu]'"
    return ""
