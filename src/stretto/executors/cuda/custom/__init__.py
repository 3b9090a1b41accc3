"""Kernels of the user's own: the layer under ours, with handles."""
