"""Ranks started by `spawn`: processes, their tasks, and what became of them."""
