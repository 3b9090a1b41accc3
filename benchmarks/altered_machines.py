"""Altered machines, made from a seed: what is broken or uneven about them is named.

Links are down or halved, NICs dead, groups have relays or none, generations are mixed;
there are tori, meshes, dragonflies, fat trees with oversubscription, stars of hosts.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from stretto import topology
from stretto.topology import Costs, Link, Machine, Switch

__all__ = ["SEED", "Case", "altered"]

SEED = 2026
Case = dict[str, Any]


def altered() -> Iterator[Case]:
    """Yield the machines of the table: name, machine, group, whether others relay."""
    chance = random.Random(SEED)
    for base in ("dgx1", "dgx_a100x2", "mi250x", "torus4x4", "dgx_h100x2", "ndv2x2"):
        whole = topology.load(base)
        for which in ("down", "halved"):
            for turn in range(2 if base in ("dgx1", "mi250x", "torus4x4") else 1):
                names, machine = _hurt(whole, chance, which)
                yield _case(f"{base} {which} {names}", machine)
                del turn
    for base, nics in (("dgx_a100x2", "ib"), ("dgx_h100x2", "rail"), ("mi250x2", "ib")):
        whole = topology.load(base)
        rank = chance.randrange(whole.num_ranks)
        names = [
            k.name
            for k in whole.links
            if rank in (k.src, k.dst) and _is_nic(whole, k, nics)
        ]
        yield _case(f"{base} NIC {rank} dead", whole.degraded(dead_links=names))
        slow = dict.fromkeys(names, 2.0)
        yield _case(f"{base} NIC {rank} halved", whole.degraded(slow=slow))
    for base, groups in (
        ("dgx1", ((0, 1, 2, 3), (0, 1, 2, 3, 4, 5), (0, 7), (1, 4, 6))),
        ("dgx_a100x2", ((0, 1, 2, 3, 8, 9, 10, 11), (0, 1, 2, 3, 4, 5, 8, 9))),
        ("mi250x2", ((*range(8), *range(16, 24)),)),
        ("mi250x", (tuple(range(8)),)),
        ("torus4x4", ((0, 1, 2, 3, 4),)),
        ("dgx_h100x2", ((0, 1, 2, 8, 9),)),
    ):
        whole = topology.load(base)
        for group in groups:
            for relays in (True, False):
                if relays or _joined(whole, group):
                    yield _case(base, whole, group, relays=relays)
        size = chance.choice((5, 6))
        some = tuple(sorted(chance.sample(range(whole.num_ranks), size)))
        yield _case(base, whole, some, relays=True)
    for first in (8, 4):
        yield _case(f"{first} H100 + 8 A100", mixed(first, 8, outer=25))
    yield _case("8 H100 + 8 A100, wide", mixed(8, 8, outer=50))
    for name in ("torus3x5", "torus5x5", "torus2x3x3"):
        whole = topology.load(name)
        yield _case(name, whole)
        names, machine = _hurt(whole, chance, "down")
        yield _case(f"{name} down {names}", machine)
    for rows, columns in ((3, 4), (4, 4), (2, 6)):
        yield _case(f"mesh {rows}x{columns}", mesh(rows, columns))
    yield _case("dragonfly4x4x1", topology.load("dragonfly4x4x1"))
    yield _case("dragonfly3x2x2", topology.load("dragonfly3x2x2"))
    names, machine = _hurt(
        topology.load("dragonfly4x4x1"), chance, "down", inside=False
    )
    yield _case(f"dragonfly4x4x1 down {names}", machine)
    yield from (_case(f"fat tree, 1:{x}", fat_tree(4, 4, x)) for x in (1, 2, 4))
    yield _case("fat tree, 1:2, two spines", fat_tree(3, 4, 2, spines=2))
    yield _case("star of 8, one slow", star(8, slow=1))
    yield _case("star of 12, three slow", star(12, slow=3))
    yield _case("two stars", two_stars(5, 4))
    others = pcie8(), het24(), planes(40, 6), topology.load("mi250x2")
    yield from (_case(machine.name, machine) for machine in others)


def _case(
    name: str, machine: Machine, group: tuple[int, ...] = (), *, relays: bool = False
) -> Case:
    here = "".join(
        [" {", ",".join(map(str, group)), "}", " + relays" * relays] if group else []
    )
    return {"name": name + here, "machine": machine, "group": group, "relays": relays}


def _hurt(
    whole: Machine, chance: random.Random, how: str, *, inside: bool = True
) -> tuple[str, Machine]:
    """Return a machine with one connection down, or two halved, both ways."""
    pairs = sorted({(min(k.src, k.dst), max(k.src, k.dst)) for k in whole.links})
    if not inside:
        pairs = [p for p in pairs if p[0] >= whole.num_ranks]
    chosen = chance.sample(pairs, 1 if how == "down" else 2)
    names = [k.name for k in whole.links for p in chosen if {k.src, k.dst} == set(p)]
    if how == "down":
        machine = whole.degraded(dead_links=names)
    else:
        machine = whole.degraded(slow=dict.fromkeys(names, 2.0))
    if not _joined(machine, tuple(range(machine.num_ranks))):
        return _hurt(whole, chance, how, inside=inside)
    shown = ", ".join(f"{whole.node_name(a)}-{whole.node_name(b)}" for a, b in chosen)
    return shown, machine


def _is_nic(machine: Machine, link: Link, prefix: str) -> bool:
    switch = machine.node_name(max(link.src, link.dst))
    return switch.startswith(prefix)


def _joined(machine: Machine, group: tuple[int, ...]) -> bool:
    """Return whether a group without the others is one machine."""
    inside = {
        *group,
        *range(machine.num_ranks, machine.num_ranks + len(machine.switches)),
    }
    reached, queue = {group[0]}, [group[0]]
    for v in queue:
        for k in machine.links:
            alive = k.bandwidth_gbytes_per_s > 0 and k.dst in inside
            if k.src == v and alive and k.dst not in reached:
                reached.add(k.dst)
                queue.append(k.dst)
    return set(group) <= reached


def build(
    name: str,
    ranks: int,
    switches: list[str],
    ends: list[tuple[int, int, float, float]],
    box: int,
) -> Machine:
    """Return a machine of connections: two nodes, GB/s, us, both ways."""
    label = [*map(str, range(ranks)), *switches]
    links = [
        Link(
            src=a,
            dst=b,
            bandwidth_gbytes_per_s=rate,
            latency_us=late,
            name=f"{label[a]}->{label[b]}",
        )
        for x, y, rate, late in ends
        for a, b in ((x, y), (y, x))
    ]
    return Machine(
        name=name,
        kind="gpu",
        num_ranks=ranks,
        links=tuple(links),
        switches=tuple(Switch(name=s) for s in switches),
        ranks_per_box=box,
        costs=Costs(background_puts=True),
    )


def mixed(first: int, second: int, *, outer: float) -> Machine:
    """Return a box of newer GPUs beside one of older ones, over one outer switch."""
    n = first + second
    ends = [(r, n + (r >= first), 450.0 if r < first else 300.0, 0.5) for r in range(n)]
    ends += [(r, n + 2, 50.0 if r < first else outer, 1.0) for r in range(n)]
    return build("mixed", n, ["new", "old", "outer"], ends, n)


def mesh(rows: int, columns: int) -> Machine:
    """Return a grid without wrap, its rates drawn from the seed."""
    chance = random.Random(SEED + rows * 100 + columns)
    ends = []
    for r in range(rows * columns):
        if r % columns < columns - 1:
            ends.append((r, r + 1, chance.choice((25.0, 50.0)), 0.5))
        if r < (rows - 1) * columns:
            ends.append((r, r + columns, chance.choice((25.0, 50.0)), 0.5))
    return build("mesh", rows * columns, [], ends, 1)


def fat_tree(leaves: int, hosts: int, over: int, *, spines: int = 1) -> Machine:
    """Return leaves of hosts under spines, oversubscribed 1 to `over`."""
    n = leaves * hosts
    names = [f"leaf{i}" for i in range(leaves)] + [f"spine{i}" for i in range(spines)]
    ends = [(r, n + r // hosts, 25.0, 0.5) for r in range(n)]
    up = 25.0 * hosts / over / spines
    ends += [
        (n + i, n + leaves + j, up, 0.5) for i in range(leaves) for j in range(spines)
    ]
    return build("fat_tree", n, names, ends, hosts)


def star(hosts: int, *, slow: int) -> Machine:
    """Return hosts around one switch, some with half the rate."""
    ends = [(r, hosts, 12.5 if r < slow else 25.0, 1.0) for r in range(hosts)]
    return build("star", hosts, ["hub"], ends, 1)


def two_stars(first: int, second: int) -> Machine:
    """Return two switches of hosts, joined by two hosts' worth."""
    n = first + second
    ends = [(r, n + (r >= first), 25.0, 1.0) for r in range(n)]
    return build("two_stars", n, ["east", "west"], [*ends, (n, n + 1, 50.0, 1.0)], 1)


def pcie8() -> Machine:
    """Return four PCIe switches of two GPUs each, under two CPUs."""
    names = [*(f"pcie{i}" for i in range(4)), "cpu0", "cpu1"]
    ends = [(r, 8 + r // 2, 25.0, 0.7) for r in range(8)]
    ends += [(8 + i, 12 + i // 2, 25.0, 0.3) for i in range(4)]
    return build("pcie8", 8, names, [*ends, (12, 13, 20.0, 0.5)], 8)


def het24() -> Machine:
    """Return boxes of three generations, eight GPUs each, over one outer switch."""
    inner, outer = (450.0, 300.0, 150.0), (50.0, 25.0, 12.5)
    ends = [(r, 24 + r // 8, inner[r // 8], 0.5) for r in range(24)]
    ends += [(r, 27, outer[r // 8], 1.5) for r in range(24)]
    return build("het24", 24, ["new", "old", "oldest", "outer"], ends, 8)


def planes(ranks: int, count: int) -> Machine:
    """Return ranks that are joined to every one of some switches."""
    names = [f"plane{i}" for i in range(count)]
    ends = [(r, ranks + i, 75.0, 0.5) for r in range(ranks) for i in range(count)]
    return build(f"nvl{ranks}", ranks, names, ends, ranks)
