"""The regular shapes of machine files: boxes repeated, tori, dragonflies, plain lists.

Each generator adds nodes and links to a `DraftMachine`. Legend: r rank, b box, i local
rank, g group of a dragonfly, k global link of a group.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from dataclasses import dataclass, field

from stretto.errors import TopologyError
from stretto.topology.parts import Link, Switch
from stretto.topology.reader import Reader

__all__ = ["DraftMachine", "add_boxes", "add_dragonfly", "add_lists", "add_torus"]


_MOST_RANKS = 1 << 16
_MOST_LINKS = 1 << 19
_MOST_MOVED = 1 << 23
"""Ranks that the symmetries of a file move, all together: few say all others."""
_MOST_DIMS = 16


@dataclass(slots=True, kw_only=True)
class DraftMachine:
    """A machine while it is being built."""

    num_ranks: int
    ranks_per_box: int
    nics_per_box: int = 0
    switches: list[Switch] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)
    symmetries: list[tuple[int, ...]] = field(default_factory=list)
    claimed: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Symmetries that the file itself names, by where it does."""

    def __post_init__(self) -> None:
        """Refuse more ranks than any machine has, before anything is made of them."""
        if not 1 <= self.num_ranks <= _MOST_RANKS:
            raise TopologyError(
                f"a machine of {str(self.num_ranks)[:40]} ranks; want 1 to "
                f"{_MOST_RANKS}"
            )

    def switch(self, name: str, *, copies: bool = False) -> int:
        """Add a switch and return its node."""
        self.switches.append(Switch(name=name, copies=copies))
        return self.num_ranks + len(self.switches) - 1

    def name_of(self, node: int) -> str:
        """Return what a node is called."""
        is_rank = node < self.num_ranks
        return str(node) if is_rank else self.switches[node - self.num_ranks].name

    def link(self, src: int, dst: int, speed: tuple[float, float]) -> None:
        """Add a one-way link of that bandwidth and latency."""
        if len(self.links) >= _MOST_LINKS:
            raise TopologyError(f"a machine of more than {_MOST_LINKS} links")
        name = f"{self.name_of(src)}->{self.name_of(dst)}"
        bandwidth, latency = speed
        self.links.append(
            Link(
                src=src,
                dst=dst,
                bandwidth_gbytes_per_s=bandwidth,
                latency_us=latency,
                name=name,
            )
        )

    def join(self, a: int, b: int, speed: tuple[float, float]) -> None:
        """Add a link each way."""
        self.link(a, b, speed)
        self.link(b, a, speed)


_MOST = 1e12
"""Nothing real is that fast or late: more is a slip, and no figure for arithmetic."""


def speed_of(reader: Reader) -> tuple[float, float]:
    rate = reader.number("bandwidth_gbytes_per_s")
    if not 1 / _MOST <= rate <= _MOST:
        want = f"a rate above 0, {1 / _MOST:g} to {_MOST:g}, in 10^9 B/s"
        raise reader.wrong("bandwidth_gbytes_per_s", want)
    latency = reader.number("latency_us")
    if not latency <= _MOST:
        raise reader.wrong(
            "latency_us", f"a time below infinity, at most {_MOST:g}, in us"
        )
    return rate, latency


def add_boxes(box: Reader, repeat: Reader) -> DraftMachine:
    """Build equal boxes: meshes and switches inside, links and switches between.

    What stands under `repeat` is there only when there are several boxes.
    """
    size = box.integer("ranks", least=1)
    num_boxes = repeat.integer("boxes", 1, least=1)
    draft = DraftMachine(
        num_ranks=size * num_boxes,
        ranks_per_box=size,
        nics_per_box=box.integer("nics", 0),
    )
    bases = range(0, draft.num_ranks, size)
    for mesh in box.tables("meshes"):
        pairs, speed = mesh.lists("pairs", below=size, each=2), speed_of(mesh)
        for base, (a, b) in itertools.product(bases, pairs):
            draft.join(base + a, base + b, speed)
        mesh.done()
    for switch in box.tables("switches"):
        _add_switch(draft, switch, boxes=[[base] for base in bases])
    for between in repeat.tables("links"):  # none when there is one box
        pairs, speed = between.lists("from_to", below=size, each=2), speed_of(between)
        for here, there in itertools.permutations(bases if pairs else (), 2):
            for a, b in pairs:
                draft.link(here + a, there + b, speed)
        between.done()
    for switch in repeat.tables("switches"):
        own = switch.flag("in_each_box", False)
        boxes = [[base] for base in bases] if own else [list(bases)]
        _add_switch(draft, switch, boxes=boxes if num_boxes > 1 else [])
    _add_box_symmetries(draft, box, repeat)
    box.done()
    repeat.done()
    return draft


def _add_switch(draft: DraftMachine, reader: Reader, *, boxes: list[list[int]]) -> None:
    """Add a switch for every group of local ranks in each of the sets of boxes.

    `groups` is "all", "each" or lists of local ranks; `over` joins the switches of
    that name, or of those names, instead of ranks, all of them.
    """
    name, copies = reader.text("name"), reader.flag("copies", False)
    speed = speed_of(reader)
    if "over" in reader:
        names = _names(reader, "over")
        nodes = _named(draft, reader, names) if boxes else []
        hubs = [draft.switch(name, copies=copies)] if boxes else []
        for hub, node in itertools.product(hubs, nodes):
            draft.join(node, hub, speed)
    else:
        groups = _groups(reader, draft.ranks_per_box)
        wanted = [(bases, group) for bases in boxes for group in groups]
        for index, (bases, group) in enumerate(wanted):
            number = str(index) if len(wanted) > 1 else ""
            hub = draft.switch(f"{name}{number}", copies=copies)
            for base, (i, sends, receives) in itertools.product(bases, group):
                if sends:
                    draft.link(base + i, hub, speed)
                if receives:
                    draft.link(hub, base + i, speed)
    reader.done()


def _names(reader: Reader, key: str) -> list[str]:
    said = reader.raw(key)
    return [said] if isinstance(said, str) else list(reader.texts(key))


def _named(draft: DraftMachine, reader: Reader, wanted: list[str]) -> list[int]:
    """Return the switches that one is `over`: each of a name, in the order of names."""
    by_name: dict[str, list[int]] = defaultdict(list)
    for node, switch in enumerate(draft.switches, draft.num_ranks):
        for name in {switch.name, switch.name.rstrip("0123456789.")}:
            by_name[name].append(node)
    if not wanted or not set(wanted) <= set(by_name):
        names = ", ".join(by_name) or "none so far"
        raise reader.wrong("over", f"names of switches given before: {names}")
    return [node for name in dict.fromkeys(wanted) for node in by_name[name]]


def _groups(reader: Reader, size: int) -> list[list[tuple[int, bool, bool]]]:
    """Return the groups of local ranks of a switch: who, whether sends, receives."""
    if "senders" in reader or "receivers" in reader:
        senders = reader.integers("senders", below=size)
        receivers = reader.integers("receivers", below=size)
        members = sorted({*senders, *receivers})
        return [[(i, i in senders, i in receivers) for i in members]]
    match reader.raw("groups"):
        case "all":
            lists: list[tuple[int, ...]] = [tuple(range(size))]
        case "each":
            lists = [(i,) for i in range(size)]
        case list():
            lists = reader.lists("groups", below=size)
        case _:
            raise reader.wrong("groups", "'all', 'each' or lists of local ranks")
    return [[(i, True, True) for i in members] for members in lists]


def _add_box_symmetries(draft: DraftMachine, box: Reader, repeat: Reader) -> None:
    size, n = draft.ranks_per_box, draft.num_ranks
    inside: dict[str, tuple[int, ...]] = {}
    if "symmetries" in box:
        lists = box.lists("symmetries", below=size, each=size)
        if len(lists) * n > _MOST_MOVED:
            raise box.wrong("symmetries", f"fewer of {n} ranks, all others follow")
        for i, moved in enumerate(lists):
            if sorted(moved) != list(range(size)):
                raise box.wrong("symmetries", f"each rank below {size} once in each")
            inside[f"box.symmetries[{i}]"] = moved
    if "rotations" in box:
        turns = box.integers("rotations", below=size)
        if len(turns) * n > _MOST_MOVED:
            raise box.wrong("rotations", f"fewer of {n} ranks, all others follow")
        for i, by in enumerate(turns):
            turned = tuple((place + by) % size for place in range(size))
            inside[f"box.rotations[{i}]"] = turned
    for where, moved in inside.items():
        draft.claimed[where] = tuple(r - r % size + moved[r % size] for r in range(n))
    draft.symmetries += draft.claimed.values()
    if n > size and repeat.flag("boxes_alike", True):
        draft.symmetries.append(tuple((r + size) % n for r in range(n)))


def add_torus(reader: Reader) -> DraftMachine:
    """Build a torus (or, without `wrap`, a mesh) of one rank per box."""
    dims = reader.integers("dims")
    wrap, speed = reader.flag("wrap", True), speed_of(reader)
    if not 1 <= len(dims) <= _MOST_DIMS or min(dims) < 1:
        raise reader.wrong("dims", f"a list of 1 to {_MOST_DIMS} sizes, 1 or more")
    draft = DraftMachine(num_ranks=math.prod(dims), ranks_per_box=1)
    strides = [math.prod(dims[d + 1 :]) for d in range(len(dims))]
    shifted = [
        tuple(
            r + stride * ((r // stride + 1) % size - r // stride % size)
            for r in range(draft.num_ranks)
        )
        for size, stride in zip(dims, strides, strict=True)
    ]
    for size, stride, nexts in zip(dims, strides, shifted, strict=True):
        for r, following in enumerate(nexts):
            at_end = r // stride % size == size - 1
            # a ring of two is one pair of neighbours, not two
            if size > 1 and not (at_end and (size == 2 or not wrap)):
                draft.join(r, following, speed)
    if wrap:
        draft.symmetries += [
            s for s, size in zip(shifted, dims, strict=True) if size > 1
        ]
    reader.done()
    return draft


def add_dragonfly(reader: Reader) -> DraftMachine:
    """Build groups of fully joined routers, one global link between any two groups."""
    num_groups = reader.integer("groups", least=1)
    routers = reader.integer("routers", least=1)
    hosts = reader.integer("hosts", least=1)
    speeds = {}
    for part in ("host", "local", "global"):
        table = reader.table(part)
        speeds[part] = speed_of(table)
        table.done()
    per_group = routers * hosts
    draft = DraftMachine(num_ranks=num_groups * per_group, ranks_per_box=hosts)
    nodes = [
        [draft.switch(f"router{g}.{a}") for a in range(routers)]
        for g in range(num_groups)
    ]
    for g, group in enumerate(nodes):
        for a, router in enumerate(group):
            for h in range(hosts):
                draft.join(g * per_group + a * hosts + h, router, speeds["host"])
        for one, other in itertools.combinations(group, 2):
            draft.join(one, other, speeds["local"])
    each = math.ceil((num_groups - 1) / routers)  # global links of a router
    for g, other in itertools.combinations(range(num_groups), 2):
        there, back = other - g - 1, num_groups - (other - g) - 1
        ends = nodes[g][there // each], nodes[other][back // each]
        draft.join(*ends, speeds["global"])
    n = draft.num_ranks
    if num_groups > 1:
        draft.symmetries.append(tuple((r + per_group) % n for r in range(n)))
    reader.done()
    return draft


def add_lists(draft: DraftMachine, top: Reader) -> None:
    """Add the switches and links that a file names one by one."""
    for switch in top.tables("switches"):
        draft.switch(switch.text("name"), copies=switch.flag("copies", False))
        switch.done()
    named = {
        draft.name_of(draft.num_ranks + i): draft.num_ranks + i
        for i in range(len(draft.switches))
    }
    if len(named) < len(draft.switches):
        raise TopologyError(f"{top.where}: two switches have one name")
    for link in top.tables("links"):
        ends = []
        for key in ("src", "dst"):
            end = link.raw(key)
            node = named.get(end, -1) if isinstance(end, str) else end
            whole = isinstance(node, int) and not isinstance(node, bool)
            if not whole or not 0 <= node < draft.num_ranks + len(named):
                raise link.wrong(key, "a rank's number or a switch's name")
            ends.append(node)
        add = draft.join if link.flag("both_ways", True) else draft.link
        add(ends[0], ends[1], speed_of(link))
        link.done()
