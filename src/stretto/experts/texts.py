"""The texts of kernels for a geometry: its numbers, then what is written by hand."""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass
from typing import Any

from stretto.errors import CallError
from stretto.experts.geometry import QUANTISERS, Geometry
from stretto.registry import texts

__all__ = ["BLOCK_WORDS", "OPTIONS", "CombineCall", "DispatchCall", "PeerPlaces",
           "text_of", "why_not"]  # fmt: skip

_ELEMENTS = {"float32": "Float32", "bfloat16": "BFloat16", "float16": "Float16"}
_LAYOUTS = {"token": 0, "expert": 1, "rank": 2}
_PAGE = 256
MOST_EXPERTS = 2048
"""A block counts for all of them in its shared memory."""

OPTIONS = ("--fmad=false",)
"""Sums are CPUs' bit for bit: a product is rounded before it is added."""

BLOCK_WORDS = 4
"""Words that each block keeps of its own."""


def _structure(name: str, pointers: str, numbers: str) -> type[ctypes.Structure]:
    """Return a kernel's parameters, as places.cuh and the others have them."""
    fields: list[tuple[str, Any]] = [(one, ctypes.c_uint64) for one in pointers.split()]
    fields += [(one, ctypes.c_uint32) for one in numbers.split()]
    return type(name, (ctypes.Structure,), {"_fields_": fields})


DispatchCall = _structure(
    "DispatchCall",
    "channels x ids weights slots rows scales out_ids out_weights out_places "
    "out_tokens counts starts sources blocks",
    "tokens rank locals half",
)
CombineCall = _structure(
    "CombineCall",
    "channels rows sources ids weights places tokens_of slots own_ids own_weights out "
    "dispatches blocks",
    "tokens rank",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerPlaces:
    """Where what peers write lies, in bytes: of a dispatch, and of a combine."""

    rows: int
    scales: int
    ids: int
    numbers: int
    weights: int
    tokens: int
    totals: int
    half: int
    done: int
    enter: int
    nbytes: int
    back_half: int
    back_done: int
    back_nbytes: int

    @classmethod
    def of(cls, g: Geometry, blocks: int) -> PeerPlaces:
        """Return it for a geometry."""
        slots, n = g.num_ranks * g.max_tokens, g.num_ranks
        most = max(g.num_local(q) for q in range(n))
        sizes = {
            "rows": slots * g.row_bytes,
            "scales": slots * g.scale_bytes,
            "ids": 4 * slots * g.top_k,
            "numbers": 4 * slots * g.top_k,
            "weights": 4 * slots * g.top_k,
            "tokens": 4 * slots,
            "totals": 4 * n * (1 + most),
        }
        places, at = {}, 0
        for name, size in sizes.items():
            places[name] = at
            at += -(-size // _PAGE) * _PAGE
        packets = 2 * 16 * n * blocks
        back = slots if g.order == "rank" else g.max_tokens * g.top_k
        back_half = -(-back * g.hidden * g.itemsize // _PAGE) * _PAGE
        return cls(
            **places, half=at, done=2 * at, enter=2 * at + packets,
            nbytes=2 * at + 2 * packets, back_half=back_half, back_done=2 * back_half,
            back_nbytes=2 * back_half + packets,
        )  # fmt: skip


def why_not(g: Geometry) -> str:
    """Return why kernels do not take a geometry, or ""."""
    if g.hidden * g.itemsize % 16:
        return (
            f"hidden={g.hidden} of {g.dtype}; on GPUs want rows of a multiple of 16 "
            "bytes"
        )
    if g.num_experts > MOST_EXPERTS:
        return f"num_experts={g.num_experts}; on GPUs want at most {MOST_EXPERTS}"
    return ""


@functools.cache
def _by_hand() -> str:
    """Return what is written by hand, as one text."""
    every = texts("stretto.experts", "kernels", ".cuh")
    whole = "".join(every[name] for name in ("places", "dispatch", "combine"))
    return whole.replace('#include "places.cuh"\n', "").replace("#pragma once\n", "")


def text_of(g: Geometry, blocks: int, threads: int) -> str:
    """Return the text of both kernels: numbers, then what is written by hand."""
    if why := why_not(g):
        raise CallError(why)
    m, n = PeerPlaces.of(g, blocks), g.num_ranks
    names = {
        "RANKS": n, "BLOCKS": blocks, "THREADS": threads, "EXPERTS": g.num_experts,
        "CHOICES": g.top_k, "HIDDEN": g.hidden, "MAX_TOKENS": g.max_tokens,
        "MOST_LOCALS": max(g.num_local(q) for q in range(n)), "ALIGN": g.align,
        "LAYOUT": _LAYOUTS[g.layout],
    }  # fmt: skip
    places = {
        "ROWS_AT": m.rows, "SCALES_AT": m.scales, "IDS_AT": m.ids,
        "NUMBERS_AT": m.numbers, "WEIGHTS_AT": m.weights, "TOKENS_AT": m.tokens,
        "TOTALS_AT": m.totals, "HALF": m.half, "DONE_AT": m.done, "ENTER_AT": m.enter,
        "BACK_HALF": m.back_half, "BACK_DONE_AT": m.back_done,
    }  # fmt: skip
    flags = {
        "QUANTISED": bool(g.quantise), "POWERS": bool(QUANTISERS[g.quantise]),
        "ORDER_K": g.order == "k",
    }  # fmt: skip
    lines = [
        '#include "channel.cuh"', '#include "element.cuh"', "namespace stretto {",
        f"using Element = {_ELEMENTS[g.dtype]};",
        *(f"constexpr u32 {name} = {value};" for name, value in names.items()),
        *(f"constexpr u64 {name} = {value};" for name, value in places.items()),
        *(f"constexpr bool {name} = {str(on).lower()};" for name, on in flags.items()),
        *_owners(g), "}  // namespace stretto", "",
    ]  # fmt: skip
    return "\n".join(lines) + _by_hand()


def _owners(g: Geometry) -> list[str]:
    """Return functions from an expert to its rank, and its number there."""
    each = g.num_experts // g.num_ranks
    if g.owner == tuple(e // each for e in range(g.num_experts)) and each:
        of, local = f"e / {each}", f"e % {each}"
        tables = []
    else:
        of, local = "OWNERS[e]", "NUMBERS[e]"
        tables = [
            f"__device__ const u16 {name}[] = {{{', '.join(map(str, values))}}};"
            for name, values in (("OWNERS", g.owner), ("NUMBERS", g.local().tolist()))
        ]
    return [
        *tables,
        f"__device__ __forceinline__ u32 owner_of(u32 e) {{ return {of}; }}",
        f"__device__ __forceinline__ u32 local_of(u32 e) {{ return {local}; }}",
    ]
