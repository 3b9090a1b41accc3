"""A machine: ranks, switches, the directed links between them, and what things cost.

Nodes are numbered: ranks first, then switches. A link carries data one way; data on a
route share each of its links with whatever else is on it. Machines are values:
`degraded` returns another one.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

from stretto.errors import TopologyError, UnknownNameError
from stretto.topology.parts import Costs, Link, Ports, Switch
from stretto.topology.routes import Route, Router

__all__ = ["Machine"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Ranks and how they are joined."""

    name: str
    kind: str
    """`gpu` or `cpu`."""
    num_ranks: int
    links: tuple[Link, ...]
    switches: tuple[Switch, ...] = ()
    """Nodes `num_ranks`, `num_ranks + 1`, ..."""
    ranks_per_box: int
    nics_per_box: int = 0
    costs: Costs = field(default_factory=Costs)
    ports: Ports = field(default_factory=Ports)
    symmetries: tuple[tuple[int, ...], ...] = ()
    """Permutations of the ranks that map the machine to itself; they generate more."""
    dead_ranks: frozenset[int] = frozenset()
    about: str = ""
    _repr_svg_: ClassVar[Callable[[Machine], str]]
    """What notebooks show: set by this package, since a picture knows machines."""
    _router: Router = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Refuse what is not a machine."""
        _check(self)
        router = Router(self.name, self.num_ranks, self.links, self.dead_ranks)
        object.__setattr__(self, "_router", router)

    def __hash__(self) -> int:
        """Hash the name and size: links are many."""
        return hash((self.name, self.num_ranks, len(self.links)))

    @property
    def num_boxes(self) -> int:
        """Return how many boxes there are."""
        return self.num_ranks // self.ranks_per_box

    def __repr__(self) -> str:
        """Return it in one line; `topology.render` has all of it."""
        what = f"{self.num_ranks} {self.kind} ranks, {len(self.links)} links"
        return f"<Machine {self.name}: {what}, {len(self.switches)} switches>"

    @property
    def boxes(self) -> tuple[range, ...]:
        """Return the ranks of every box."""
        size = self.ranks_per_box
        return tuple(range(b * size, (b + 1) * size) for b in range(self.num_boxes))

    @property
    def rails(self) -> tuple[range, ...]:
        """Return the ranks that have the same place in every box."""
        size = self.ranks_per_box
        return tuple(range(i, self.num_ranks, size) for i in range(size))

    def node_name(self, node: int) -> str:
        """Return what a node is called: a rank by its number, a switch by its name."""
        is_rank = node < self.num_ranks
        return str(node) if is_rank else self.switches[node - self.num_ranks].name

    def link_named(self, name: str) -> int:
        """Return the index of the link of that name, such as `0->nvswitch`."""
        for index, link in enumerate(self.links):
            if link.name == name:
                return index
        raise UnknownNameError.among("link", name, (lk.name for lk in self.links))

    def route(self, src: int, dst: int) -> Route:
        """Return the links from one rank to another, the same at every call.

        Only switches forward where that is possible; else ranks relay, as few as can
        be. Among those the route has the least latency, then the fewest hops, then the
        widest links. Where ports spread flows, one of the best by a hash of the pair.
        """
        if self.ports.spreads:
            return self.flow_route(src, dst, 0)
        return self._router.route(src, dst)

    def equal_routes(self, src: int, dst: int) -> tuple[Route, ...]:
        """Return all routes that are as good as the best, in a fixed order."""
        return self._router.equal_routes(src, dst)

    def flow_route(self, src: int, dst: int, flow: int) -> Route:
        """Return the route that the hash of a flow between two ranks chooses.

        Flows of one pair may take different ones, and flows of others the same: what
        switches do by the headers of a packet.
        """
        routes = self._router.equal_routes(src, dst)
        if len(routes) == 1 or not self.ports.spreads:
            return routes[0]
        word = f"{self.ports.hash_seed} {src} {dst} {flow}".encode()
        return routes[zlib.crc32(word) % len(routes)]

    def degraded(
        self,
        *,
        dead_links: Iterable[str] = (),
        slow: Mapping[str, float] | None = None,
        dead_ranks: Iterable[int] = (),
    ) -> Machine:
        """Return this machine with links dead, links `factor` times slower, ranks dead.

        Routes avoid dead links, and ranks that are dead relay nothing.
        """
        factors = dict.fromkeys(dead_links, math.inf)
        for name, factor in (slow or {}).items():
            if not factor >= 1:
                raise TopologyError(
                    f"{self.name}, link {name}: slowed by {factor}; want 1 or more"
                )
            factors.setdefault(name, factor)
        links = list(self.links)
        for name, factor in factors.items():
            index = self.link_named(name)
            rate = links[index].bandwidth_gbytes_per_s / factor
            links[index] = replace(links[index], bandwidth_gbytes_per_s=rate)
        dead = self.dead_ranks | frozenset(dead_ranks)
        return replace(self, links=tuple(links), dead_ranks=dead, symmetries=())


def _check(machine: Machine) -> None:
    n, where = machine.num_ranks, f"machine {machine.name}"
    num_nodes = n + len(machine.switches)
    if machine.kind not in ("gpu", "cpu"):
        raise TopologyError(f"{where}: kind={machine.kind!r}; want 'gpu' or 'cpu'")
    if n < 1 or machine.ranks_per_box < 1 or n % machine.ranks_per_box:
        raise TopologyError(
            f"{where}: {n} ranks in boxes of {machine.ranks_per_box};"
            " want a whole number of boxes"
        )
    if wrong := [r for r in machine.dead_ranks if not 0 <= r < n]:
        raise TopologyError(f"{where}: dead ranks {wrong}; want ranks below {n}")
    ends: set[tuple[int, int]] = set()
    for link in machine.links:
        inside = 0 <= link.src < num_nodes and 0 <= link.dst < num_nodes
        if not inside or link.src == link.dst:
            raise TopologyError(
                f"{where}, link {link.name}: joins {link.src} to {link.dst};"
                f" want two of the nodes 0 to {num_nodes - 1}"
            )
        speeds = link.bandwidth_gbytes_per_s, link.latency_us
        if not all(0 <= speed < math.inf for speed in speeds):
            raise TopologyError(
                f"{where}, link {link.name}: {link.bandwidth_gbytes_per_s} GB/s,"
                f" {link.latency_us} us; want neither below 0 nor infinite"
            )
        if (link.src, link.dst) in ends:
            raise TopologyError(
                f"{where}, link {link.name}: given twice; add the bandwidths up"
            )
        ends.add((link.src, link.dst))
    for symmetry in machine.symmetries:
        if sorted(symmetry) != list(range(n)):
            raise TopologyError(f"{where}: symmetry {symmetry} does not permute ranks")
