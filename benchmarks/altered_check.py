"""A checker of programs: reads their text, follows every contribution, replays links.

It shares nothing with `stretto.synth`: a program's text and a machine are all it knows.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from altered_machines import Case

from stretto.topology import Machine

__all__ = ["check"]


def check(case: Case, text: str, collective: str, nbytes: int) -> float:
    """Return when the last byte arrives, or raise what is wrong."""
    machine, group = case["machine"], case["group"]
    members = list(group or range(machine.num_ranks))
    alone = bool(group) and not case["relays"]
    at = members if alone else list(range(machine.num_ranks))
    ours = list(range(len(members))) if alone else members
    head, *lines = text.splitlines()
    split = int(head.split("split=")[1].split()[0])
    n = len(ours)
    size = nbytes / (n * split)
    held: dict[tuple[str, int], dict[int, tuple[int, frozenset[int], float]]] = {}
    for i, r in enumerate(ours):
        mine = _given(collective, i, n, split)
        held[f"r{r}.input", 0] = mine
    links = {}
    for e, k in enumerate(machine.links):
        links[machine.node_name(k.src), machine.node_name(k.dst)] = e
    free = [0.0] * len(machine.links)
    for line in lines:
        words = line.strip()
        if not words or words.startswith(("scratch ", "@", "#")):
            continue
        left, sign, right = words.partition(" += ")
        if not sign:
            left, _, right = words.partition(" = ")
        parts = [left] * bool(sign) + right.split(" + ")
        name, a, b = _reference(left)
        came: list[list[tuple[int, frozenset[int], float]]] = []
        for part in parts:
            what, _, via = part.partition(" via ")
            source, c, d = _reference(what)
            data = [held[source, 0][j] for j in range(c, d)]
            here, there = _rank(source), _rank(name)
            if here != there:
                since = max(t for _, _, t in data)
                ways = _ways(machine, links, at[here], at[there], via)
                arrives = since
                for way in ways:
                    start = max([arrives, *(free[e] for e in way)])
                    longest = late = 0.0
                    for e in way:
                        k = machine.links[e]
                        took = size * (d - c) / k.bandwidth_gbytes_per_s / 1e3
                        free[e] = start + took
                        longest, late = max(longest, took), late + k.latency_us
                    arrives = start + longest + late
                data = [(q, who, arrives) for q, who, _ in data]
            came.append(data)
        target = held.setdefault((name, 0), {})
        for j, pieces in zip(range(a, b), zip(*came, strict=True), strict=True):
            who: frozenset[int] = frozenset()
            for q, contributors, _ in pieces:
                assert q == pieces[0][0], f"{line}: adds different pieces"
                assert not who & contributors, f"{line}: counts twice"
                who |= contributors
            target[j] = (pieces[0][0], who, max(t for _, _, t in pieces))
    return _promised(held, ours, collective, split)


def _given(
    collective: str, place: int, n: int, split: int
) -> dict[int, tuple[int, frozenset[int], float]]:
    """Return the pieces of a rank's input, all there from the start."""
    own = frozenset([place])
    first = {"all_gather": place * split, "all_to_all": place * n * split}
    count = split if collective == "all_gather" else n * split
    return {j: (first.get(collective, 0) + j, own, 0.0) for j in range(count)}


def _promised(held: Any, ours: list[int], collective: str, split: int) -> float:
    n, last = len(ours), 0.0
    everyone = frozenset(range(n))
    for i, r in enumerate(ours):
        got = held[f"r{r}.output", 0]
        count = split if collective == "reduce_scatter" else n * split
        assert sorted(got) == list(range(count)), f"rank {r}: output has {len(got)}"
        for j in range(count):
            q, who, t = got[j]
            match collective:
                case "all_gather":
                    want = j, frozenset([j // split])
                case "all_to_all":
                    want = (
                        (j // split * n + i) * split + j % split,
                        frozenset([j // split]),
                    )
                case "reduce_scatter":
                    want = i * split + j, everyone
                case _:
                    want = j, everyone
            assert (q, who) == want, f"rank {r}, output {j}: got {q} of {sorted(who)}"
            last = max(last, t)
    return last


def _reference(text: str) -> tuple[str, int, int]:
    name, _, chunks = text.strip().rstrip("]").partition("[")
    start, _, stop = chunks.partition(":")
    return name, int(start), int(stop or int(start) + 1)


def _rank(name: str) -> int:
    return int(name[1:].partition(".")[0])


def _ways(
    machine: Machine, links: dict[Any, int], here: int, there: int, via: str
) -> list[list[int]]:
    """Return the links of a transfer: those that are named, or the machine's route."""
    if via:
        stops = [str(here), *(via.split(">") if via != "-" else []), str(there)]
        return [[links[pair] for pair in pairwise(stops)]]
    parts: list[list[int]] = [[]]
    for e in machine.route(here, there).links:
        parts[-1].append(e)
        if machine.links[e].dst < machine.num_ranks:
            parts.append([])
    return parts[:-1]
