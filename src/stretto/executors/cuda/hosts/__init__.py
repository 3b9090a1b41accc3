"""Ranks on other hosts: pinned memory, requests of kernels, and the thread between."""
