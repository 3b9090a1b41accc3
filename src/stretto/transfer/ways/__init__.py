"""Transfers, and the ways their bytes go: in place, by a stage, by GPUs, to stores.

Which way a transfer takes is chosen here; how engines meet and talk is not known.
"""
