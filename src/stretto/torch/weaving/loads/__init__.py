"""Kinds of woven calls: how they are cut, computed and ended."""

from stretto.torch.weaving.loads.kinds import made
from stretto.torch.weaving.loads.load import WovenLoad

__all__ = ["WovenLoad", "made"]
