"""Pairs of ranks move a vector each; send and recv are the permute of one pair."""

from __future__ import annotations

from collections.abc import Sequence

from stretto.errors import CallError
from stretto.program.collectives.base import Need, Pattern, Shape, SymbolRun
from stretto.program.elements import Array, Operator


class Permute(Pattern):
    """Rank q's vector goes to rank r for every pair (q, r) of `pairs`."""

    name = "permute"

    def pairs(self, shape: Shape) -> dict[int, int]:
        """Return the source of every target."""
        pairs = shape.params.get("pairs", ())
        if not isinstance(pairs, tuple | list):  # an iterator can be read only once
            raise CallError(
                f"pairs={pairs!r}; want (source, target) pairs in a tuple, such as "
                f"((0, 1), (1, 0))"
            )
        sources: dict[int, int] = {}
        for pair in pairs:
            if not isinstance(pair, tuple | list) or len(pair) != 2:
                raise CallError(f"pairs: got {pair!r}; want (source, target)")
            source, target = pair
            for rank in pair:
                if type(rank) is not int or not 0 <= rank < shape.num_ranks:
                    raise CallError(f"pair {source, target}: no rank {rank!r}")
            if target in sources or source in sources.values():
                raise CallError(f"pair {source, target}: a rank sends or receives once")
            sources[target] = source
        return sources

    def check(self, shape: Shape) -> None:
        """Raise `CallError` when the pairs make no permutation."""
        super().check(shape)
        self.pairs(shape)

    def input_runs(self, shape: Shape, rank: int) -> tuple[SymbolRun, ...]:
        """Return the symbols of the input of a rank that sends."""
        k = shape.split
        return (
            (SymbolRun(0, k, rank * k),) if rank in self.pairs(shape).values() else ()
        )

    def output_runs(self, shape: Shape, rank: int) -> tuple[SymbolRun, ...]:
        """Return the symbols of the output of a rank that receives."""
        source = self.pairs(shape).get(rank)
        k = shape.split
        return () if source is None else (SymbolRun(0, k, source * k),)

    def promise(self, shape: Shape, rank: int) -> tuple[Need, ...]:
        """Return what the output must hold: the source's vector."""
        source = self.pairs(shape).get(rank)
        return () if source is None else (Need(0, shape.split, 0, 1 << source),)

    def oracle(
        self, shape: Shape, inputs: Sequence[Array], op: Operator, counts: Array
    ) -> list[Array]:
        """Return every rank's output; ranks nobody targets have none."""
        sources = self.pairs(shape)
        return [
            inputs[sources[r]].copy() if r in sources else inputs[r][:0]
            for r in range(shape.num_ranks)
        ]
