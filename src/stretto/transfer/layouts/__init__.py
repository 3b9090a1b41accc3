"""How tensors lie in memory: axes by name, and the KV caches that people serve from."""

from stretto.transfer.layouts.layout import Axis, Layout
from stretto.transfer.layouts.named import kv_layout, names

__all__ = ["Axis", "Layout", "kv_layout", "names"]
