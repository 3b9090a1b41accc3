"""All-reduce over many hosts: rails whose owners scatter, then gather."""

from __future__ import annotations

from itertools import pairwise

from stretto.program.lang import Ranks, algorithm, by_host, reduce


@algorithm("all_reduce/rails_two_shot")
def rails_two_shot(ranks: Ranks, hosts: tuple[int, ...] = ()) -> None:
    """Owners of a part sum a piece of it each, over all hosts, and share the pieces.

    Between hosts go twice the bytes of a part, however many hosts there are.
    """
    groups = by_host(ranks, hosts)
    parts, m = min(map(len, groups)), len(groups)
    n = len(ranks[0].output)
    for i in range(parts):
        low, high = i * n // parts, (i + 1) * n // parts
        owners = [group[i] for group in groups]
        for group, owner in zip(groups, owners, strict=True):
            whole = owner.scratch("sum", n)
            whole[low:high] = reduce(q.input[low:high] for q in group)
        cuts = [low + j * (high - low) // m for j in range(m + 1)]
        pieces = [slice(a, b) for a, b in pairwise(cuts)]
        for owner, piece in zip(owners, pieces, strict=True):
            if piece.start < piece.stop:
                owner.output[piece] = reduce(q.scratch("sum", n)[piece] for q in owners)
        for nth, (owner, piece) in enumerate(zip(owners, pieces, strict=True)):
            for j in range(1, m) if piece.start < piece.stop else ():
                owners[(nth + j) % m].output[piece] = owner.output[piece]
        for group, owner in zip(groups, owners, strict=True):
            for q in group:
                if q != owner:
                    q.output[low:high] = owner.output[low:high]
