"""Move a plan's bytes: compiled where Numba is, by NumPy elsewhere."""
