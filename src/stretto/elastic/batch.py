"""The batch that stays the same whatever the number of ranks: exact, and pure.

A step's batch is micro-batch x accumulation x ranks. So that training does not notice
who is there, that product must not change; here are the products for which it need not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from stretto.errors import CallError


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """A batch, and how each number of ranks divides it."""

    batch: int
    """Samples of a step, of all ranks together."""
    micro_batches: dict[int, int] = field(default_factory=dict)
    """By number of ranks: samples of one pass of one rank, the most that fit."""

    def accumulation(self, ranks: int) -> int:
        """Return how many passes each of so many ranks makes in a step."""
        micro = self.micro_batches.get(ranks)
        if micro is None:
            known = sorted(self.micro_batches)
            near = sorted(known, key=lambda n: (abs(n - ranks), n))[:2]
            raise CallError(
                f"a batch of {self.batch} is not divided evenly by {ranks} ranks; "
                f"nearest numbers that do: {', '.join(map(str, sorted(near)))}"
            )
        return self.batch // (micro * ranks)


def elastic_batch(
    max_batch: int, micro_batches: Sequence[int], ranks: Iterable[int]
) -> Shares:
    """Return the batch of at most `max_batch` that most of these numbers of ranks do.

    Of several, the largest. Each number of ranks takes its largest micro-batch. All
    candidates are tried: every multiple of a micro-batch, up to the maximum.
    """
    most = _whole("max_batch", max_batch)
    micros = sorted({_whole("micro_batches", one) for one in micro_batches})
    sizes = sorted({_whole("ranks", one) for one in ranks})
    if not micros or not sizes:
        raise CallError("elastic_batch: want at least one micro-batch, and one number")
    tried = sorted({k for m in micros for k in range(m, most + 1, m)})
    if not tried:
        raise CallError(
            f"elastic_batch: max_batch={most} is below the smallest micro-batch, "
            f"{micros[0]}"
        )
    shares = ((batch, _divided(batch, micros, sizes)) for batch in tried)
    found = [(len(shared), batch, shared) for batch, shared in shares if shared]
    if not found:
        raise CallError(
            f"elastic_batch: no batch of at most {most} is divided evenly by any of "
            f"{sizes} ranks with micro-batches {micros}; the smallest that is: "
            f"{micros[0] * sizes[0]}"
        )
    _, batch, shared = max(found, key=lambda one: one[:2])
    return Shares(batch=batch, micro_batches=shared)


def _divided(batch: int, micros: Sequence[int], sizes: Sequence[int]) -> dict[int, int]:
    """Return the largest micro-batch of each number of ranks that divides a batch."""
    found = {}
    for n in sizes:
        fits = [m for m in micros if batch % (m * n) == 0]
        if fits:
            found[n] = max(fits)
    return found


def _whole(name: str, given: object) -> int:
    if type(given) is not int or given < 1:
        raise CallError(
            f"elastic_batch: {name}={str(given)[:40]}; want whole numbers from 1 on"
        )
    return given
