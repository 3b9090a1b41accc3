"""The graph that synthesis works on: exact rates, latencies, switches, a group.

Nodes are ranks first, then switches. Rates are fractions of 10^9 bytes a second, alphas
fractions of a microsecond. In the cost model of this room a transfer goes from rank to
rank, cut through the switches between; it occupies every link on its way for bytes/rate
of that link, all from the same start, and arrives after bytes/(slowest rate) plus the
alphas. Alpha does not occupy a link.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction

from stretto.errors import TopologyError
from stretto.synth.network.distances import useful
from stretto.topology import Costs, Machine

__all__ = ["Network", "NetworkLink", "SwitchPath", "from_machine", "microseconds"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkLink:
    """A one-way connection."""

    src: int
    dst: int
    rate: Fraction
    alpha: Fraction = Fraction(0)
    name: str = ""
    """Of the machine's link."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchPath:
    """A way from one rank to another over switches only."""

    src: int
    dst: int
    links: tuple[int, ...]
    rate: Fraction
    """Of the slowest link."""
    alpha: Fraction

    @property
    def turned(self) -> SwitchPath:
        """Return the same way, gone backwards over links that are turned round."""
        return replace(self, src=self.dst, dst=self.src, links=self.links[::-1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """A capacitated digraph and the ranks that take part in a collective."""

    name: str
    num_ranks: int
    num_nodes: int
    links: tuple[NetworkLink, ...]
    box: tuple[int, ...]
    """The box of every rank."""
    members: tuple[int, ...]
    """The ranks that take part; the others may relay."""
    generators: tuple[tuple[int, ...], ...] = ()
    """Permutations of the ranks that may be symmetries; checked before use."""
    machine: Machine | None = field(default=None, compare=False, repr=False)
    places: tuple[int, ...] = ()
    """Where on the machine every rank is; empty: all are where their number says."""

    def __post_init__(self) -> None:
        """Refuse links that are none, and two where one is meant: bounds name ends."""
        ends: set[tuple[int, int]] = set()
        for link in self.links:
            src, dst = link.src, link.dst
            if src == dst or not (0 <= src < self.num_nodes > dst >= 0):
                wrong = f"want two of the nodes 0 to {self.num_nodes - 1}"
            elif link.rate <= 0 or link.alpha < 0:
                wrong = (
                    f"{link.rate} GB/s, {link.alpha} us; want a rate above 0, and an"
                    " alpha of 0 or more"
                )
            elif (src, dst) in ends:
                wrong = "given twice; add the rates up"
            else:
                ends.add((src, dst))
                continue
            raise TopologyError(f"{self.name}, link {src}->{dst}: {wrong}")

    def __hash__(self) -> int:
        """Hash the name and size: links are many."""
        return hash((self.name, self.members, len(self.links)))

    def place(self, rank: int) -> int:
        """Return where on the machine a rank is."""
        return self.places[rank] if self.places else rank

    @property
    def is_all(self) -> bool:
        """Return whether links say all of what a program takes: operations are free."""
        machine = self.machine
        return machine is None or machine.costs == Costs(background_puts=True)

    def is_natural(self, src: int, dst: int, links: tuple[int, ...]) -> bool:
        """Return whether that is the way which the machine takes unasked."""
        if self.machine is None:
            return True
        try:
            own = self.machine.route(self.place(src), self.place(dst)).links
        except TopologyError:  # made of links that are not the machine's
            return True
        names = [self.machine.links[e].name for e in own]
        return names == [self.links[e].name for e in links]

    def switches_on(self, links: tuple[int, ...]) -> tuple[str, ...]:
        """Return the names of the switches on a way."""
        assert self.machine is not None  # who has no machine has only its own ways
        return tuple(
            self.machine.switches[self.links[e].dst - self.num_ranks].name
            for e in links[:-1]
        )

    def leaving(self) -> list[list[int]]:
        """Return the indices of the links out of every node."""
        out: list[list[int]] = [[] for _ in range(self.num_nodes)]
        for index, link in enumerate(self.links):
            out[link.src].append(index)
        return out

    @property
    def reversed(self) -> Network:
        """Return the network with every link turned round."""
        turned = tuple(replace(k, src=k.dst, dst=k.src) for k in self.links)
        return replace(self, links=turned)

    def hops(
        self, src: int, leaving: list[list[int]] | None = None
    ) -> Iterator[SwitchPath]:
        """Yield ways from `src` to other ranks that cross only switches.

        Of each pair at most a few, the shortest, and none much longer than that: how
        many ways there are does not matter.
        """
        leaving = leaving or self.leaving()
        place = {e: i for out in leaving for i, e in enumerate(out)}

        def turn(path: tuple[int, ...]) -> list[tuple[int, int]]:
            return [(1, place[e]) for e in path[:-1]] + [(0, -place[path[-1]])]

        for path in sorted(useful(self, src, leaving), key=turn):
            way = [self.links[i] for i in path]
            yield SwitchPath(
                src=src,
                dst=way[-1].dst,
                links=path,
                rate=min(k.rate for k in way),
                alpha=sum((k.alpha for k in way), Fraction(0)),
            )

    def group(self, ranks: Iterable[int], *, relays: bool) -> Network:
        """Return the network for a collective among some of the ranks.

        Without relays the others disappear and ranks are numbered anew, in order.
        """
        members = tuple(sorted(set(ranks)))
        wrong = [r for r in members if not 0 <= r < self.num_ranks]
        if wrong or not members:
            raise TopologyError(
                f"{self.name}: group {members}; want ranks 0 to {self.num_ranks - 1}"
            )
        if relays or len(members) == self.num_ranks:
            return replace(self, members=members)
        gone = set(range(self.num_ranks)) - set(members)
        kept = [v for v in range(self.num_nodes) if v not in gone]
        new = {v: i for i, v in enumerate(kept)}
        links = tuple(
            replace(k, src=new[k.src], dst=new[k.dst])
            for k in self.links
            if k.src in new and k.dst in new
        )
        inside = [p for p in self.generators if {p[r] for r in members} == set(members)]
        return replace(
            self,
            num_ranks=len(members),
            num_nodes=len(kept),
            links=links,
            box=tuple(self.box[r] for r in members),
            members=tuple(range(len(members))),
            places=tuple(self.place(r) for r in members),
            generators=tuple(tuple(new[p[r]] for r in members) for p in inside),
        )


def microseconds(nbytes: Fraction, rate: Fraction) -> Fraction:
    """Return how long a link of `rate` GB/s carries `nbytes`."""
    return nbytes / (rate * 1000)


def _exact(value: float) -> Fraction:
    """Return the fraction that a number of a machine means: 33.333333333 is 100/3."""
    simple = Fraction(value).limit_denominator(10**6)
    near = abs(float(simple) - value) <= 1e-9 * value
    return simple if near else Fraction(repr(value))


def from_machine(machine: Machine) -> Network:
    """Return the network of a machine; dead links and ranks are left out."""
    n = machine.num_ranks
    links = tuple(
        NetworkLink(
            src=k.src,
            dst=k.dst,
            rate=_exact(k.bandwidth_gbytes_per_s),
            alpha=_exact(k.latency_us),
            name=k.name,
        )
        for k in machine.links
        if k.bandwidth_gbytes_per_s > 0
    )
    network = Network(
        name=machine.name,
        num_ranks=n,
        num_nodes=n + len(machine.switches),
        links=links,
        box=tuple(r // machine.ranks_per_box for r in range(n)),
        members=tuple(range(n)),
        generators=machine.symmetries,
        machine=machine,
    )
    if machine.dead_ranks:
        alive = [r for r in range(n) if r not in machine.dead_ranks]
        return network.group(alive, relays=False)
    return network
