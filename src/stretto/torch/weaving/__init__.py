"""Calls that compute and move at once, in the order that a weave says."""

from stretto.torch.weaving.doors import woven
from stretto.torch.weaving.loads import WovenLoad, load_of
from stretto.torch.weaving.woven import Woven

__all__ = ["Woven", "WovenLoad", "load_of", "woven"]
