"""Which kernel each step of a decoding layer has, for each number of tokens: measured.

Every candidate is compared with plain PyTorch in float32 first; one that is wrong is
not taken, and said. What is chosen serves every variant of a benchmark alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch_llama
from torch import Tensor
from torch.nn import functional
from torch_llama import Place, Weights

CLOSE = 0.01
"""Relative error of products, of bf16 inputs and rounded once."""
BLOCKS = ((64, 128, 4), (32, 256, 4))
"""Rows and columns of a block, and how many blocks are on their way."""
MEASURED = (1, 4, 16, 64)
"""Tokens that are measured; others have what was chosen for the next of them."""
FEWEST, MOST = 96, 1200
"""Blocks of a launch that are tried: an H200 has 132 SMs."""


class Chooser:
    """The measuring on one rank; all ranks choose what is fastest on the slowest."""

    def __init__(self, rank: Any, weights: Weights) -> None:
        self.rank, self.weights = rank, weights
        self.said: dict[str, Any] = {"matrices": [], "attention": [], "failed": {}}
        self._stream = torch.cuda.Stream()

    def choose(
        self, tokens: Iterable[int], keys: list[Tensor], values: list[Tensor]
    ) -> dict[str, Any]:
        """Fill `torch_llama.THIN` and `ATTENTION`; return what was measured."""
        layers = self.weights.layers
        matrices = {
            name: [layer[name] for layer in layers]
            for name in ("qkv", "o", "gate_up", "down")
        }
        matrices["head"] = [self.weights.head] * 2
        wanted = [count for count in sorted(set(tokens)) if count <= MEASURED[-1]]
        for count in MEASURED:
            here = [t for t in wanted if _measured_for(t) == count]
            if not here:
                continue
            for name, some in matrices.items():
                self._one(
                    name, count,
                    lambda n=name, s=some, c=count, h=here: self._matrix(n, s, c, h),
                )  # fmt: skip
            self._one(
                "attention", count,
                lambda c=count, h=here: self._attention(c, keys, values, h),
            )  # fmt: skip
        return self.said

    def _one(self, name: str, tokens: int, choose: Callable[[], None]) -> None:
        """Choose for one step; what goes wrong there is said, and leaves the others."""
        _, wrong = self.rank.tried(choose)
        if wrong:
            self.said["failed"][f"{name}, {tokens} tokens"] = wrong

    # Products.

    def _matrix(
        self, name: str, some: list[Tensor], tokens: int, here: list[int]
    ) -> None:
        from torch_llama_calls import silu_times

        gated, (rows, columns) = name == "gate_up", some[0].shape
        x = torch.empty(tokens, columns, device=some[0].device, dtype=some[0].dtype)
        x.normal_(generator=torch.Generator(x.device).manual_seed(tokens))

        def by_cublas(x: Tensor, w: Tensor) -> Tensor:
            made = functional.linear(x, w)
            return silu_times(made) if gated else made

        ways: dict[str, Callable[..., Tensor]] = {"cuBLAS": by_cublas}
        for way in self._candidates(tokens, rows, columns, gated):
            ways[str(way)] = way
        wide = functional.linear(x.float(), some[0].float())
        if gated:
            gate, up = wide.chunk(2, -1)
            wide = functional.silu(gate) * up

        def timed(ways: dict[str, Any]) -> dict[str, float]:
            return self._timed(
                f"{name}, {tokens} tokens", ways,
                lambda way: _gap(way(x, some[0]), wide),
                lambda way: [way(x, w) for w in some], len(some),
            )  # fmt: skip

        us = timed(ways)
        best = min(us, key=lambda n: us[n])
        if best != "cuBLAS":
            later = ways[best].later()  # type: ignore[attr-defined]
            ways[str(later)] = later
            us |= timed({str(later): later})
            best = min(us, key=lambda n: us[n])
        if best != "cuBLAS" and us[best] > 0.98 * us.get("cuBLAS", 1e9):
            best = "cuBLAS"
        for count in here if best != "cuBLAS" else ():
            torch_llama.THIN[count, rows, columns, gated] = ways[best]
        rate = some[0].nbytes / us[best] / 1e3
        row = {"matrix": name, "tokens": tokens, "way": best, "us": us[best],
               "GB/s": round(rate), "cuBLAS": us.get("cuBLAS"), "all": us}  # fmt: skip
        self.said["matrices"].append(row)

    def _candidates(
        self, tokens: int, rows: int, columns: int, gated: bool
    ) -> list[Any]:
        from torch_llama_calls import Thin

        rows //= 2 if gated else 1
        found = []
        for block_n, block_k, stages in BLOCKS:
            block_m = 16 if tokens <= 16 else 64
            few = gated or (block_m == 64 and block_k == 256)
            for splits in (1, 2, 4, 8):
                way = Thin(
                    block_m, block_n, block_k, splits, 3 if few else stages, gated
                )
                blocks = rows // block_n * splits
                if way.fits(tokens, rows, columns) and FEWEST <= blocks <= MOST:
                    found.append(way)
        return found

    # Attention.

    def _attention(
        self, tokens: int, keys: list[Tensor], values: list[Tensor], here: list[int]
    ) -> None:
        from torch_llama_calls import Attention, turn_store_attend

        shape, ranks = self.weights.shape, self.weights.ranks
        heads, kv, head = shape.heads // ranks, shape.kv_heads // ranks, shape.head
        places = keys[0].shape[2]
        gen = torch.Generator(keys[0].device).manual_seed(tokens)
        made = torch.empty(
            tokens, heads + 2 * kv, head, device=keys[0].device, dtype=keys[0].dtype
        ).normal_(generator=gen)
        spare = made.clone()  # turned in place, again and again
        last = torch.full((tokens,), places - 1, device=made.device)
        at = Place.at(last, head, made.dtype)
        ways: dict[str, Any] = {"PyTorch's": turn_store_attend}
        ways |= {
            f"{splits} splits": Attention(splits)
            for splits in (1, 2, 4, 8, 16)
            if Attention(splits).fits(places) and tokens * kv * splits <= MOST
        }
        k, v = keys[0].clone(), values[0].clone()
        want = torch_llama.attended(made.clone(), at, k, v, heads)

        def gap(way: Any) -> float:
            mine = keys[0].clone(), values[0].clone()
            got = way(made.clone(), at.cos, at.sin, *mine, heads)
            stored = max(_gap(mine[0], k.float()), _gap(mine[1], v.float()))
            return max(_gap(got, want.float()) / 2, stored)  # two roundings

        us = self._timed(
            f"attention, {tokens} tokens", ways, gap,
            lambda way: [
                way(spare, at.cos, at.sin, k, v, heads)
                for k, v in zip(keys, values, strict=True)
            ], len(keys),
        )  # fmt: skip
        if us:
            best = min(us, key=lambda n: us[n])
            torch_llama.ATTENTION.update(dict.fromkeys(here, ways[best]))
            self.said["attention"].append({"tokens": tokens, "way": best, "us": us})

    # Measuring.

    def _timed(
        self, what: str, ways: dict[str, Any], gap: Callable[[Any], float],
        call: Callable[[Any], Any], calls: int,
    ) -> dict[str, float]:  # fmt: skip
        """Return microseconds a call of the ways that are right."""
        found, wrong = {}, {}
        for name, way in ways.items():
            try:
                off = gap(way)
                if not off < CLOSE:
                    raise ValueError(f"off by {off}, want {CLOSE}")
                found[name] = self._median(lambda way=way: call(way)) / calls
            except Exception as e:
                wrong[name] = f"{type(e).__name__}: {e}"[:500]
        told = self.rank.everybody((found, wrong))
        for name in ways:
            why = [w[name] for _, w in told if name in w]
            if why:
                self.said["failed"][f"{what}, {name}"] = why[0]
        return {
            name: round(max(f[name] for f, _ in told), 2)
            for name in ways
            if all(name in f for f, _ in told)
        }

    def _median(self, call: Callable[[], Any]) -> float:
        """Return microseconds of a graph of calls."""
        call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()  # with memory of its own: it ends with the graph
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            graph.capture_begin()  # torch.cuda.graph empties caches each time
            try:
                call()
            finally:
                graph.capture_end()
        torch.cuda.current_stream().wait_stream(self._stream)
        times = []
        for _ in range(4):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graph.replay()
            end.record()
            torch.cuda.synchronize()
            times.append(begin.elapsed_time(end) * 1e3)
        return sorted(times[1:])[1]

    def check(self) -> None:
        """Raise when kernels that always serve are not what PyTorch computes."""
        from torch_llama_calls import add_norm, silu_times

        weight = self.weights.norm
        x = torch.randn(3, *weight.shape, device=weight.device).to(weight.dtype)
        residual = torch.randn_like(x)
        total = residual + x
        want = functional.rms_norm(total.float(), weight.shape, weight.float(), 1e-5)
        off = _gap(add_norm(x, residual, weight, 1e-5), want)
        if not off < CLOSE or not torch.equal(total, residual):
            raise ValueError(f"add_norm: off by {off}")
        both = torch.randn(3, 2048, device=weight.device).to(weight.dtype)
        gate, up = both.float().chunk(2, -1)
        off = _gap(silu_times(both), functional.silu(gate) * up)
        if not off < CLOSE:
            raise ValueError(f"silu_times: off by {off}")


def _measured_for(tokens: int) -> int:
    return next(count for count in MEASURED if tokens <= count)


def _gap(got: Tensor, want: Tensor) -> float:
    """Return the relative error."""
    return float((got.float() - want).norm() / want.norm())
