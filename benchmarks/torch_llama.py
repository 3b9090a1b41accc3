"""A model of Llama's shape under tensor parallelism, for torch_decode.py.

It is written as serving engines write theirs: merged matrices, norms that take the
residual along, row-parallel layers that end in `dist.all_reduce`. It knows nothing of
who communicates: `group` is a group of torch.distributed, of whatever backend.
Weights are random, and drawn by rank; models that share them have the same numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

EPS = 1e-5
BY_TRITON = True
"""Whether norms that take a residual, gates and what follows are kernels of Triton."""
THIN: dict[tuple[int, int, int, bool], Any] = {}
"""By tokens, rows and columns of a matrix, and whether a gate follows: what multiplies
in place of cuBLAS. torch_llama_choice.py fills it."""
ATTENTION: dict[int, Any] = {}
"""By tokens: what turns, stores and attends in place of PyTorch."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Sizes of a model."""

    hidden: int
    heads: int
    kv_heads: int
    inner: int
    layers: int
    vocab: int
    head: int = 128


SHAPES = {
    "8b": Shape(
        hidden=4096, heads=32, kv_heads=8, inner=14336, layers=32, vocab=128256
    ),
    "70b": Shape(
        hidden=8192, heads=64, kv_heads=8, inner=28672, layers=80, vocab=128256
    ),
    "tiny": Shape(
        hidden=64, heads=8, kv_heads=4, inner=128, layers=2, vocab=256, head=16
    ),
}


class Weights:
    """This rank's parts of all matrices, drawn once."""

    def __init__(
        self, shape: Shape, rank: int, ranks: int, device: Any, dtype: torch.dtype
    ) -> None:
        self.shape, self.ranks = shape, ranks
        own = torch.Generator(device).manual_seed(1000 + rank)
        same = torch.Generator(device).manual_seed(7)
        s, head = shape, shape.head

        def drawn(rows: int, columns: int, fan: int, by: Any = own) -> Tensor:
            made = torch.empty(rows, columns, device=device, dtype=dtype)
            return made.normal_(0, fan**-0.5, generator=by)

        def norm() -> Tensor:
            made = torch.empty(s.hidden, device=device, dtype=dtype)
            return made.uniform_(0.5, 1.5, generator=same)

        q, kv = s.heads // ranks * head, s.kv_heads // ranks * head
        self.layers = [
            {
                "input_norm": norm(),
                "qkv": drawn(q + 2 * kv, s.hidden, s.hidden),
                "o": drawn(s.hidden, q, s.heads * head),
                "post_norm": norm(),
                "gate_up": drawn(2 * s.inner // ranks, s.hidden, s.hidden),
                "down": drawn(s.hidden, s.inner // ranks, s.inner),
            }
            for _ in range(s.layers)
        ]
        self.norm = norm()
        self.embedding = drawn(s.vocab, s.hidden, 1, same)
        self.head = drawn(s.vocab // ranks, s.hidden, s.hidden)


class RMSNorm(nn.Module):
    """The norm; with a residual it adds that first, and returns the sum, too."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(weight, requires_grad=False), EPS

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Any:
        """Return the norm of `x`, or (norm of the sum, sum)."""
        if residual is None:
            return _norm(x, self.weight)
        if torch.compiler.is_compiling():
            total = residual + x
            return _norm(total, self.weight), total
        if _by_triton(x):
            return _add_norm_by_triton(x, residual, self.weight), residual
        residual += x
        return _norm(residual, self.weight), residual


def _norm(x: Tensor, weight: Tensor) -> Tensor:
    if x.is_cuda and not torch.compiler.is_compiling():
        return functional.rms_norm(x, weight.shape, weight, EPS)
    wide = x.float()
    scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPS)
    return (wide * scale * weight.float()).to(x.dtype)


def _by_triton(x: Tensor) -> bool:
    if torch.compiler.is_compiling():
        return False
    return BY_TRITON and x.is_cuda and x.dtype == torch.bfloat16


def _add_norm_by_triton(x: Tensor, residual: Tensor, weight: Tensor) -> Tensor:
    """Return the norm, and change the residual, by one kernel, as engines do."""
    from torch_llama_calls import add_norm

    return add_norm(x, residual, weight, EPS)


def linear(x: Tensor, w: Tensor, out: Tensor | None = None) -> Tensor:
    """Return x times w transposed, by what is fastest for so few tokens."""
    if _by_triton(x):
        way = THIN.get((x.shape[0], *w.shape, False))
        if way is not None:
            return way(x, w, out)
    if out is None:
        return functional.linear(x, w)
    return torch.mm(x, w.t(), out=out)


def gated(x: Tensor, w: Tensor) -> Tensor:
    """Return silu of the first half of columns of the product times the second."""
    if _by_triton(x):
        way = THIN.get((x.shape[0], *w.shape, True))
        if way is not None:
            return way(x, w)
    return _gated(functional.linear(x, w))


class RowParallelLinear(nn.Module):
    """A matrix whose columns are divided: its results are summed over ranks."""

    def __init__(self, weight: Tensor, group: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.group, self.reduce_results = group, True

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum of everybody's part."""
        y = linear(x, self.weight)
        if self.reduce_results:
            dist.all_reduce(y, group=self.group)
        return y


class Layer(nn.Module):
    """Attention and what follows it."""

    def __init__(
        self, shape: Shape, w: dict[str, Tensor], ranks: int, row: Any
    ) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(w["input_norm"])
        self.post_attention_layernorm = RMSNorm(w["post_norm"])
        self.qkv = nn.Parameter(w["qkv"], requires_grad=False)
        self.gate_up = nn.Parameter(w["gate_up"], requires_grad=False)
        self.o_proj, self.down_proj = row(w["o"]), row(w["down"])
        self.heads, self.kv = shape.heads // ranks, shape.kv_heads // ranks
        self.head = shape.head

    def forward(
        self, hidden: Any, residual: Tensor | None, place: Place
    ) -> tuple[Any, Tensor]:
        """Return (what is to be added to the residual, residual)."""
        if residual is None:
            residual, hidden = hidden, self.input_layernorm(hidden)
        else:
            hidden, residual = self.input_layernorm(hidden, residual)
        hidden = self.o_proj(self.attention(hidden, place))
        hidden, residual = self.post_attention_layernorm(hidden, residual)
        return self.down_proj(gated(hidden, self.gate_up)), residual

    def attention(self, hidden: Tensor, place: Place) -> Tensor:
        """Attend to the keys before, and to this one."""
        tokens, head = hidden.shape[0], self.head
        made = linear(hidden, self.qkv).view(tokens, -1, head)
        if place.keys is not None and place.values is not None:  # decode
            keys, values = place.keys[place.layer], place.values[place.layer]
            if _by_triton(made):
                way = ATTENTION.get(tokens) or _by_two()
                return way(made, place.cos, place.sin, keys, values, self.heads)
            return attended(made, place, keys, values, self.heads)
        q, k, v = made.split([self.heads, self.kv, self.kv], 1)
        q, k = _turned(q, place), _turned(k, place)
        one = (t.transpose(0, 1).unsqueeze(0) for t in (q, k, v))  # one sequence
        out = functional.scaled_dot_product_attention(
            *one, is_causal=True, enable_gqa=True
        )
        return out.squeeze(0).transpose(0, 1).reshape(tokens, -1)


def _by_two() -> Any:
    """Return what serves where nothing else was chosen: a kernel, and PyTorch's."""
    from torch_llama_calls import turn_store_attend

    return turn_store_attend


def attended(
    made: Tensor, place: Place, keys: Tensor, values: Tensor, heads: int
) -> Tensor:
    """Attend from each sequence's last place, which is new, to all of its places."""
    tokens, kv = made.shape[0], (made.shape[1] - heads) // 2
    q, k, v = made.split([heads, kv, kv], 1)
    q, k = _turned(q, place), _turned(k, place)
    keys[:tokens, :, -1], values[:tokens, :, -1] = k, v
    out = functional.scaled_dot_product_attention(
        q.unsqueeze(2), keys[:tokens], values[:tokens], enable_gqa=True
    )
    return out.reshape(tokens, -1)


def _gated(both: Tensor) -> Tensor:
    """Return silu of the first half of columns times the second."""
    if _by_triton(both):
        from torch_llama_calls import silu_times

        return silu_times(both)
    gate, up = both.chunk(2, -1)
    return functional.silu(gate) * up


def _turned(x: Tensor, place: Place) -> Tensor:
    """Turn halves of heads by their position."""
    a, b = x.chunk(2, -1)
    return torch.cat([a * place.cos - b * place.sin, b * place.cos + a * place.sin], -1)


@dataclass
class Place:
    """Where tokens are: angles, and the keys and values before them."""

    cos: Tensor
    sin: Tensor
    keys: list[Tensor] | None = None
    values: list[Tensor] | None = None
    layer: int = 0

    @classmethod
    def at(cls, positions: Tensor, head: int, dtype: torch.dtype) -> Place:
        """Return the angles of positions."""
        each = torch.arange(0, head, 2, device=positions.device) / head
        angles = positions.float()[:, None, None] * 500000.0**-each
        return cls(angles.cos().to(dtype), angles.sin().to(dtype))


class Model(nn.Module):
    """All layers between the embedding and this rank's part of the logits."""

    def __init__(self, weights: Weights, row: Any) -> None:
        """`row` makes a row-parallel layer of its weight."""
        super().__init__()
        shape, ranks = weights.shape, weights.ranks
        self.embedding = weights.embedding
        self.layers = nn.ModuleList(Layer(shape, w, ranks, row) for w in weights.layers)
        self.norm = RMSNorm(weights.norm)
        self.head = weights.head

    def forward(self, tokens: Tensor, place: Place) -> Tensor:
        """Return this rank's part of the logits of every token."""
        hidden: Any = functional.embedding(tokens, self.embedding)
        residual = None
        for number, layer in enumerate(self.layers):
            place.layer = number
            hidden, residual = layer(hidden, residual, place)
        hidden, _ = self.norm(hidden, residual)
        return linear(hidden, self.head)


class Float32(nn.Module):
    """A row-parallel layer of the reference: all of it in float32."""

    def __init__(self, weight: Tensor, group: Any) -> None:
        super().__init__()
        self.weight, self.group = weight, group

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum."""
        y = functional.linear(x, self.weight.float())
        dist.all_reduce(y, group=self.group)
        return y


@torch.no_grad()
def reference(weights: Weights, tokens: Tensor, place: Place, group: Any) -> Tensor:
    """Return the logits in float32, a layer at a time."""
    keys = place.keys
    wide = Place(place.cos.float(), place.sin.float())
    hidden: Any = functional.embedding(tokens, weights.embedding).float()
    residual = None
    for number, w in enumerate(weights.layers):
        layer = Layer(
            weights.shape,
            {k: t if k in ("o", "down") else t.float() for k, t in w.items()},
            weights.ranks,
            lambda weight: Float32(weight, group),
        )
        if keys is not None and place.values is not None:
            wide.keys = [keys[number].float()]
            wide.values = [place.values[number].float()]
        hidden, residual = layer(hidden, residual, wide)
    hidden, _ = RMSNorm(weights.norm.float())(hidden, residual)
    return functional.linear(hidden, weights.head.float())
