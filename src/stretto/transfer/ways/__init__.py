"""Transfers, and the ways their bytes go: in place, by a stage, by GPUs, to stores.

In: two memories. Out: an order (what is copied, proved, and by which way), and the
transfer that does it. Never: how engines meet, or which of them are connected.
"""
