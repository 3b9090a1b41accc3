"""All-gather over several hosts: along the rails, then in each host."""

from __future__ import annotations

from stretto.program.lang import Ranks, algorithm, by_host


@algorithm("all_gather/rails")
def rails(ranks: Ranks, hosts: tuple[int, ...] = ()) -> None:
    """Each part goes to one rank of each other host, which hands it on there."""
    groups = by_host(ranks, hosts)
    k = len(ranks[0].input)

    def store(q: int, r: int, source: int) -> None:
        part = slice(r * k, r * k + k)
        ranks[q].output[part] = ranks[source].output[part]

    for r in ranks:
        r.output[r * k : r * k + k] = r.input[:]
    for group in groups:
        for place, r in enumerate(group):
            for other in groups:
                if other is not group:
                    store(other[place % len(other)], r, r)
    for group in groups:
        for place, r in enumerate(group):
            for here in groups:
                source = r if here is group else here[place % len(here)]
                for q in here:
                    if q != source:
                        store(q, r, source)
