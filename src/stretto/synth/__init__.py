"""Topology and collective to a program: bounds with proofs, and schedules near them."""
