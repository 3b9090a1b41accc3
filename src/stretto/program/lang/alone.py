"""A program among some of the ranks, as one of these alone: nobody runs the others."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

from stretto.errors import ProgramError, RanksError
from stretto.program.ir import Program, Ref, freeze
from stretto.program.lang.algorithm import Algorithm


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class AloneAlgorithm(Algorithm):
    """An algorithm of the members of another, numbered by their places there."""

    whole: Algorithm
    all_ranks: int

    def build(
        self, num_ranks: int, *, split: int | None = None, **params: object
    ) -> Program:
        """Return the whole's program without those who do nothing in it."""
        if reason := self.refuses(num_ranks):
            raise RanksError(reason)
        members = self.whole.members
        said = dict(params)
        if isinstance(root := said.get("root"), int) and 0 <= root < len(members):
            said["root"] = members[root]
        found = self.whole.build(self.all_ranks, split=split, **said)
        place = {rank: i for i, rank in enumerate(members)}

        def moved(ref: Ref) -> Ref:
            if ref.rank not in place:
                raise ProgramError(
                    f"{self.name}: {ref} is of no member: rank {ref.rank} is gone, and "
                    f"passes nothing on; want a program of {members} alone"
                )
            return ref._replace(rank=place[ref.rank])

        ops = tuple(
            op._replace(dst=moved(op.dst), srcs=tuple(map(moved, op.srcs)))
            for op in found.ops
        )
        kept = {k: v for k, v in found.params.items() if k != "members"}
        if "root" in kept:
            kept["root"] = place[found.params["root"]]  # type: ignore[index]
        return replace(found, num_ranks=num_ranks, params=freeze(kept), ops=ops)


@functools.lru_cache(maxsize=256)
def alone(one: Algorithm, num_ranks: int) -> Algorithm:
    """Return an algorithm among some of so many ranks as one of these alone."""
    n = len(one.members)

    def only_them(given: int) -> str | None:
        return None if given == n else f"{given} ranks; its members are {n}"

    return AloneAlgorithm(
        one.name,
        one.function,
        one.split,
        only_them,
        one.schedule,
        whole=one,
        all_ranks=num_ranks,
    )
