"""Launches of the kernels of torch_llama_kernels.py: products, attention, norms, gates.

A launch is as cheap from Python as it can be: `eager` decode is bound by the host.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor
from torch.nn import functional
from torch_llama_kernels import (
    INTERPRETED,
    _add_norm,
    _attend,
    _silu_times,
    _thin,
    _turn_and_store,
)


class Quick:
    """A kernel whose launches, but for the first of their kind, cost little Python.

    Triton looks at every argument of every launch. Here numbers say which kind it is,
    and addresses that are not as even as those of the first go the long way.
    """

    def __init__(self, kernel: Any, **options: int) -> None:
        self._kernel = kernel
        self._options = {} if INTERPRETED else {**options, "launch_pdl": True}
        self._known: dict[Any, Any] = {}

    def __call__(
        self, grid: tuple[int, int], tensors: tuple[Tensor, ...], *numbers: Any
    ) -> None:
        """Launch it on the current stream."""
        known = self._known.get(numbers)
        addresses = [t.data_ptr() for t in tensors]
        uneven = False
        for at in addresses:
            uneven |= at % 16 != 0
        if known is None or uneven:
            self._slowly(grid, tensors, numbers, keep=not uneven)
            return
        run, function, packed, device = known
        stream = torch._C._cuda_getCurrentRawStream(device)
        run(*grid, 1, stream, function, packed, None, None, None, *addresses, *numbers)

    def _slowly(self, grid: Any, tensors: Any, numbers: Any, *, keep: bool) -> None:
        made = self._kernel[(*grid, 1)](*tensors, *numbers, **self._options)
        if keep and not INTERPRETED:
            device = tensors[0].device.index
            self._known[numbers] = made.run, made.function, made.packed_metadata, device


NORM = Quick(_add_norm, num_warps=8)
GATE = Quick(_silu_times, num_warps=4)
TURN = Quick(_turn_and_store, num_warps=1)
ATTEND = Quick(_attend, num_warps=4, num_stages=2)


def add_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return the norm of the sum, and leave the sum in the residual."""
    hidden, out = x.shape[-1], torch.empty_like(x)
    block = 1 << (hidden - 1).bit_length()
    NORM((x.numel() // hidden, 1), (x, residual, weight, out), eps, hidden, block)
    return out


def turn_store_attend(
    made: Tensor, cos: Tensor, sin: Tensor, keys: Tensor, values: Tensor, heads: int
) -> Tensor:
    """Turn and store by one kernel, and attend by PyTorch's: as `Attention` does."""
    tokens, every, head = made.shape
    kv = (every - heads) // 2
    sequence_step, head_step, place_step, _ = keys.stride()
    TURN(
        (tokens, every), (made, cos, sin, keys, values), heads, kv, head // 2,
        sequence_step, head_step, (keys.shape[2] - 1) * place_step,
    )  # fmt: skip
    out = functional.scaled_dot_product_attention(
        made[:, :heads].unsqueeze(2), keys[:tokens], values[:tokens], enable_gqa=True
    )
    return out.reshape(tokens, -1)


def silu_times(both: Tensor) -> Tensor:
    """Return silu(first half of each row) * its second half."""
    tokens, twice = both.shape
    out = torch.empty(tokens, twice // 2, device=both.device, dtype=both.dtype)
    block = 1024
    pieces = triton.cdiv(twice // 2, block)
    GATE((tokens, pieces), (both, out), twice // 2, block)
    return out


class Room:
    """Memory in which parts of results meet, of one device; zeros count who came."""

    def __init__(self, device: torch.device, floats: int, counts: int) -> None:
        self.sums = torch.empty(floats, dtype=torch.float32, device=device)
        self.came = torch.zeros(counts, dtype=torch.int32, device=device)


class Thin:
    """A way to multiply few tokens: sizes of blocks, and how columns are divided."""

    KERNELS: dict[tuple[int, int], Quick] = {}  # noqa: RUF012  (one for all)

    def __init__(
        self, block_m: int, block_n: int, block_k: int, splits: int, stages: int,
        gated: bool, *, ahead: bool = True,
    ) -> None:  # fmt: skip
        self.ahead = ahead
        """Whether a kilobyte of each row is fetched before the kernel before has ended,
        and x can be read."""
        self.block_m, self.block_n, self.block_k = block_m, block_n, block_k
        self.splits, self.gated, self.stages = splits, gated, stages
        kernel = self.KERNELS.get((4, stages))
        if kernel is None:
            kernel = Quick(_thin, num_warps=4, num_stages=stages)
            self.KERNELS[4, stages] = kernel
        self._kernel = kernel
        self._room: Room | None = None

    def __str__(self) -> str:
        """Return it in a word."""
        later = "" if self.ahead else " later"
        return f"{self.block_n}x{self.block_k}/{self.splits}{later}"

    def later(self) -> Thin:
        """Return the same that fetches nothing before x can be read."""
        return Thin(
            self.block_m, self.block_n, self.block_k, self.splits, self.stages,
            self.gated, ahead=False,
        )  # fmt: skip

    def fits(self, tokens: int, rows: int, columns: int) -> bool:
        """Return whether it takes matrices of such a size."""
        each = columns // self.splits
        return (
            tokens <= self.block_m
            and rows % self.block_n == 0
            and columns % self.splits == 0
            and each % self.block_k == 0
            and each * 2 >= 1024
        )

    def __call__(self, x: Tensor, w: Tensor, out: Tensor | None = None) -> Tensor:
        """Return x times w transposed; of a gated one silu(first half) * second."""
        tokens, columns = x.shape
        rows = w.shape[0] // (2 if self.gated else 1)
        y = out
        if y is None:
            y = torch.empty(tokens, rows, device=x.device, dtype=x.dtype)
        tiles = rows // self.block_n
        room = self._room
        if room is None or room.came.numel() < tiles:
            size = 2 * self.block_n * self.block_m * self.splits * tiles
            room = self._room = Room(x.device, size if self.splits > 1 else 4, tiles)
        self._kernel(
            (tiles, self.splits), (x, w, y, room.sums, room.came), tokens, rows,
            columns, self.block_m, self.block_n, self.block_k, self.splits, self.gated,
            self.ahead,
        )  # fmt: skip
        return y


class Attention:
    """Attention of one new place a sequence: over how many splits of the others."""

    def __init__(self, splits: int, block: int = 64) -> None:
        self.splits, self.block = splits, block
        self._room: Room | None = None

    def fits(self, places: int) -> bool:
        """Return whether so many places are divided without a rest."""
        return places % (self.splits * self.block) == 0

    def __call__(
        self, made: Tensor, cos: Tensor, sin: Tensor, keys: Tensor, values: Tensor,
        heads: int,
    ) -> Tensor:  # fmt: skip
        """Turn queries and the new key, store it and its value, and attend to all.

        `made` is (tokens, heads + 2 kv, head); the cache (sequences, kv, places, head).
        """
        tokens, every, head = made.shape
        kv, places = (every - heads) // 2, keys.shape[2]
        assert made.is_contiguous(), "heads of a token follow one another"
        assert keys.stride() == values.stride(), "one step serves both"
        sequence_step, head_step, place_step, _ = keys.stride()
        assert place_step == head, "places of a head follow one another"
        out = torch.empty(tokens, heads * head, device=made.device, dtype=made.dtype)
        room = self._room
        if room is None or room.came.numel() < tokens * kv:
            size = tokens * kv * self.splits * 16 * (head + 2)
            room = self._room = Room(made.device, size, tokens * kv)
        tensors = made, cos, sin, keys, values, out, room.sums, room.came
        scale = head**-0.5 * 1.4426950408889634
        ATTEND(
            (tokens * kv, self.splits), tensors, sequence_step, head_step, places,
            scale, heads, kv, head // 2, 16, self.block, self.splits,
        )  # fmt: skip
        return out
