"""The part of a group that is C++: compiled once for each machine and PyTorch."""

from stretto.torch.native.building import build, init, load

__all__ = ["build", "init", "load"]
