"""The KV caches that serving engines allocate, as layouts, by name.

vllm/flash      a tensor a layer: K and V, pages, tokens, heads      (NHD)
vllm/flashinfer a tensor a layer: pages, K and V, heads, tokens      (HND)
vllm/cross      one tensor: pages, K and V of all layers in each
vllm/mla        a tensor a layer: pages, tokens, one compressed vector
sglang/mha      a tensor a layer and for each of K and V: tokens, heads
sglang/mla      a tensor a layer: tokens, one compressed vector
"""

from __future__ import annotations

from stretto.errors import LayoutError, UnknownNameError
from stretto.transfer.layouts.layout import Layout

_SHAPES = {
    "vllm/flash": "L={L} | KV=2 B={B} T={T} H={H} D={D}",
    "vllm/flash_hnd": "L={L} | KV=2 B={B} H={H} T={T} D={D}",
    "vllm/flashinfer": "L={L} | B={B} KV=2 H={H} T={T} D={D}",
    "vllm/flashinfer_nhd": "L={L} | B={B} KV=2 T={T} H={H} D={D}",
    "vllm/cross": "B={B} L={L} KV=2 T={T} H={H} D={D}",
    "vllm/cross_hnd": "B={B} L={L} KV=2 H={H} T={T} D={D}",
    "vllm/mla": "L={L} | B={B} T={T} D={D}",
    "sglang/mha": "KV=2 L={L} | B={B} T={T} H={H} D={D}",
    "sglang/mla": "L={L} | B={B} T={T} D={D}",
}


def names() -> tuple[str, ...]:
    """Return the names of all known caches, sorted."""
    return tuple(sorted(_SHAPES))


def kv_layout(
    name: str, *, layers: int, blocks: int, block: int, dim: int, heads: int = 1,
    dtype: str = "bfloat16", tp: tuple[int, int] = (0, 1),
    pp: tuple[int, int] | None = None,
) -> Layout:  # fmt: skip
    """Return the layout of a rank's cache.

    `heads` are those of the whole model, of which rank `tp[0]` of `tp[1]` holds its
    part; of `layers` it holds those from `pp[0]` on, before `pp[1]`. `blocks` pages of
    `block` tokens lie here. A compressed cache (MLA) is the same on every rank.
    """
    shape = _SHAPES.get(name)
    if shape is None:
        raise UnknownNameError.among("KV layout", name, _SHAPES)
    if "H" not in shape and heads != 1:
        raise LayoutError(f"{name}: heads={heads}; a compressed cache has no heads")
    sizes = {"L": layers, "B": blocks, "T": block, "H": heads, "D": dim}
    found = Layout(f"{shape.format(**sizes)} {dtype}")
    if "H" in found.names:
        found = found.shard("H", *tp)
    return found if pp is None else found.hold("L", *pp)
