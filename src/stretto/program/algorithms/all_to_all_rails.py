"""All-to-all over several hosts: to the right place here, then along the rail."""

from __future__ import annotations

from stretto.program.lang import Ranks, algorithm, by_host


@algorithm("all_to_all/rails")
def rails(ranks: Ranks, hosts: tuple[int, ...] = ()) -> None:
    """Parts for a rank of another host go to its place here, and from there to it.

    So ranks of other hosts hear from one rank of each host, not from all.
    """
    groups = by_host(ranks, hosts)
    n = len(ranks)
    k = len(ranks[0].input) // n
    for group in groups:
        for r in group:
            for other in groups:
                for place, to in enumerate(other):
                    mine, theirs = slice(to * k, to * k + k), slice(r * k, r * k + k)
                    if other is group:
                        to.output[theirs] = r.input[mine]
                        continue
                    helper = group[place % len(group)]
                    at = (int(to) * n + int(r)) * k
                    kept = helper.scratch("rail", n * n * k)
                    kept[at : at + k] = r.input[mine]
        for other in groups:
            for place, to in enumerate(other) if other is not group else ():
                helper = group[place % len(group)]
                kept = helper.scratch("rail", n * n * k)
                for r in group:
                    at = (int(to) * n + int(r)) * k
                    to.output[r * k : r * k + k] = kept[at : at + k]
