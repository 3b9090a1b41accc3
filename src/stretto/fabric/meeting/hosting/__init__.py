"""Rank 0's side of a meeting: the door, the hub, and the rendezvous they serve."""
