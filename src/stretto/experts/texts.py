"""The texts of kernels for a geometry: its numbers, then what is written by hand."""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

from stretto.errors import CallError
from stretto.experts.geometry import QUANTISERS, Geometry
from stretto.registry import texts

__all__ = ["BLOCK_WORDS", "OPTIONS", "CombineCall", "DispatchCall", "PeerPlaces",
           "chunks_of", "has_few", "laid", "text_of", "why_not"]  # fmt: skip

_ELEMENTS = {"float32": "Float32", "bfloat16": "BFloat16", "float16": "Float16"}
_LAYOUTS = {"token": 0, "expert": 1, "rank": 2}
_PAGE = 256
MOST_FEW = 64
"""Up to so many tokens of a rank go as packets."""
_MOST_SHARED = 36 << 10
"""Bytes that a block's tables may take."""
MOST_EXPERTS = 2048
"""A block counts for all of them in its shared memory."""

OPTIONS = ("--fmad=false",)
"""Sums are CPUs' bit for bit: a product is rounded before it is added."""

_CHUNK = 16
"""Tokens that a block sends before it says so, where they are many."""
BLOCK_WORDS = 4
"""Words that each block keeps of its own."""


class _Call(ctypes.Structure):
    """A kernel's parameters, as laid.cuh has them."""

    _pack: Callable[..., bytes]

    @classmethod
    def of(cls, *values: int) -> Self:
        """Return one of these values, in their order: five times as fast as by name."""
        return cls.from_buffer_copy(cls._pack(*values))


def _structure(name: str, pointers: str, numbers: str) -> type[_Call]:
    wide, narrow = pointers.split(), numbers.split()
    fields: list[tuple[str, Any]] = [(one, ctypes.c_uint64) for one in wide]
    fields += [(one, ctypes.c_uint32) for one in narrow]
    pack = struct.Struct(f"<{len(wide)}Q{len(narrow)}I").pack
    return type(name, (_Call,), {"_fields_": fields, "_pack": pack})


DispatchCall = _structure(
    "DispatchCall",
    "channels epochs x ids weights slots rows scales out_ids out_weights out_places "
    "out_tokens counts starts sources blocks",
    "tokens rank locals half",
)
CombineCall = _structure(
    "CombineCall",
    "channels epochs rows sources ids weights places tokens_of slots own_ids "
    "own_weights out dispatches blocks",
    "tokens rank",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerPlaces:
    """Where what peers write lies, in bytes: of a dispatch, and of a combine."""

    at: dict[str, int]
    """Of each part: in a half of the memory, or behind both of them."""
    half: int
    nbytes: int
    back_half: int
    back_nbytes: int

    @classmethod
    def of(cls, g: Geometry, blocks: int) -> PeerPlaces:
        """Return it for a geometry."""
        in_packets = has_few(g)
        places, half = laid(_packets(g) if in_packets else _words(g))
        entered = 2 * 16 * g.num_ranks * blocks
        """A packet of each block of each rank, in two sets."""
        told = entered * chunks_of(g, blocks)
        """The same of each chunk of tokens."""
        back = g.max_tokens * g.top_k if g.order == "k" else g.slots
        back *= g.hidden * g.itemsize * (2 if in_packets else 1)
        back_half = -(-back // _PAGE) * _PAGE
        at = {**places, "back_done": 2 * back_half}
        if not in_packets:
            at |= {"done": 2 * half, "enter": 2 * half + told}
        return cls(
            at=at, half=half, nbytes=2 * half + told + entered, back_half=back_half,
            back_nbytes=2 * back_half + entered,
        )  # fmt: skip


def has_few(g: Geometry) -> bool:
    """Return whether tokens are so few that rows go as packets."""
    words = -(-g.max_tokens // 32) * (g.num_experts + g.num_ranks)
    shared = 4 * (words + 2 * g.max_tokens * g.top_k + g.num_ranks * g.num_experts)
    return g.max_tokens <= MOST_FEW and shared <= _MOST_SHARED


def chunks_of(g: Geometry, blocks: int) -> int:
    """Return in how many chunks a block sends its tokens."""
    if has_few(g):
        return 1
    tokens = -(-g.max_tokens // blocks)
    return -(-tokens // _CHUNK)


def _words(g: Geometry) -> dict[str, int]:
    """Return the bytes of each part where rows lie as they are."""
    slots, n, choices = g.slots, g.num_ranks, 4 * g.slots * g.top_k
    return {
        "rows": slots * g.row_bytes, "scales": slots * g.scale_bytes, "ids": choices,
        "numbers": choices, "weights": choices, "tokens": 4 * slots,
        "totals": 16 * n * _most_locals(g), "heads": 16 * 2 * n,
    }  # fmt: skip


def _packets(g: Geometry) -> dict[str, int]:
    """Return the bytes of each part where all is packets (packets.cuh)."""
    slots, n = g.slots, g.num_ranks
    scales = -(-g.hidden // 256) if g.quantise else 0
    packets = {
        "rows": slots * (g.row_bytes // 8), "scales": slots * scales,
        "choices": slots * g.top_k, "tokens": slots, "totals": n * _most_locals(g),
        "heads": 2 * n,
    }  # fmt: skip
    return {name: 16 * many for name, many in packets.items()}


def laid(sizes: dict[str, int], page: int = _PAGE) -> tuple[dict[str, int], int]:
    """Return where each part begins, and where all end."""
    places, at = {}, 0
    for name, size in sizes.items():
        places[name] = at
        at += -(-size // page) * page
    return places, at


def _most_locals(g: Geometry) -> int:
    return max(g.num_local(q) for q in range(g.num_ranks))


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
def _by_hand(few: bool) -> str:
    """Return what is written by hand, as one text."""
    every = texts("stretto.experts", "kernels", ".cuh")
    some = ("dispatch_few", "combine_few") if few else ("dispatch", "combine")
    whole = "".join(every[name] for name in ("places", "packets", "laid", *some))
    for name in every:
        whole = whole.replace(f'#include "{name}.cuh"\n', "")
    return whole.replace("#pragma once\n", "")


def text_of(g: Geometry, blocks: int, threads: int) -> str:
    """Return the text of both kernels: numbers, then what is written by hand."""
    if why := why_not(g):
        raise CallError(why)
    m, n = PeerPlaces.of(g, blocks), g.num_ranks
    names = {
        "RANKS": n, "BLOCKS": blocks, "THREADS": threads, "EXPERTS": g.num_experts,
        "CHOICES": g.top_k, "HIDDEN": g.hidden, "MAX_TOKENS": g.max_tokens,
        "MOST_LOCALS": _most_locals(g), "ALIGN": g.align,
        "LAYOUT": _LAYOUTS[g.layout],
    }  # fmt: skip
    if not has_few(g):
        names |= {"CHUNK": _CHUNK, "CHUNKS": chunks_of(g, blocks)}
    places = {f"{name.upper()}_AT": at for name, at in m.at.items()}
    places |= {"HALF": m.half, "BACK_HALF": m.back_half}
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
    return "\n".join(lines) + _by_hand(has_few(g))


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
