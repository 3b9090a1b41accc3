"""Sketches: what a person knows about a machine, as rules that narrow the search.

A sketch is a small TOML file. Rules are applied before ways are looked for, and a
sketch that leaves some data no way is explained: which rank's data, to whom, and the
smallest set of rules that cannot hold together.
"""

from __future__ import annotations

import fnmatch
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from stretto.errors import TopologyError, UnknownNameError
from stretto.synth.model import Hop, Network
from stretto.synth.schedule import Chunk
from stretto.synth.symmetry import Symmetry, symmetry_of

__all__ = ["Sketch", "load_sketch", "sketches", "sketches_for"]

_Rule = Callable[[int, Hop], bool]
_KEYS = {"about", "machines", "crossings", "carriers", "slack", "switch"} | {
    "symmetry",
    "split",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sketch:
    """Rules for one family of machines; places are ranks counted inside their box."""

    name: str
    about: str = ""
    machines: tuple[str, ...] = ("*",)
    crossings: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """Which places may send to which places of other boxes; empty: all that can."""
    carriers: Mapping[int, int] = field(default_factory=dict)
    """Which place carries whose data out of the box."""
    slack: int | None = None
    """How many hops more than needed data may take; None: any."""
    switch: str = "all"
    """Inside a box, through a switch: `all` connections or `ring`, the next place."""
    symmetry: tuple[tuple[int, int], ...] = ()
    """Rotations by o in blocks of z; empty: the machine's own."""
    split: tuple[int, ...] = ()
    """Chunks a part to try; empty: the portfolio's choice."""

    def options(self, network: Network) -> dict[str, Any]:
        """Return what `synthesize` takes, or raise why the sketch cannot hold."""
        if not any(fnmatch.fnmatch(network.name, m) for m in self.machines):
            raise TopologyError(
                f"sketch {self.name}: got machine {network.name};"
                f" want one like {', '.join(self.machines)}"
            )
        rules = self._rules(network)
        self._explain(network, rules)
        near = _Near(network, rules, self.slack)
        found: dict[str, Any] = {"allowed": near.allowed, "splits": self.split}
        if self.symmetry:
            found["symmetry"] = self._symmetry(network)
        return found

    def _symmetry(self, network: Network) -> Symmetry:
        n = network.num_ranks
        for o, z in self.symmetry:
            turn = tuple((r % z + o) % z + r // z * z for r in range(n))
            if n % z or symmetry_of(network, [turn]) is None:
                raise TopologyError(
                    f"sketch {self.name}, rule symmetry [{o}, {z}]:"
                    f" not a symmetry of {network.name}, or it fixes a rank"
                )
        turns = [
            tuple((r % z + o) % z + r // z * z for r in range(n))
            for o, z in self.symmetry
        ]
        whole = symmetry_of(network, turns)
        if whole is None:
            raise TopologyError(
                f"sketch {self.name}, rule symmetry {list(self.symmetry)}:"
                " together they fix a rank; want fewer"
            )
        return whole

    def _rules(self, network: Network) -> dict[str, _Rule]:
        """Return every rule as a test of whether rank's data may take a hop."""
        box = network.box
        first = {b: box.index(b) for b in set(box)}

        def place(rank: int) -> int:
            return rank - first[box[rank]]

        rules: dict[str, _Rule] = {}
        if self.crossings:
            rules["crossings"] = lambda _, h: (
                box[h.src] == box[h.dst]
                or place(h.dst) in self.crossings.get(place(h.src), ())
            )
        if self.carriers:
            rules["carriers"] = lambda origin, h: (
                box[h.src] == box[h.dst]
                or box[h.src] != box[origin]
                or self.carriers.get(place(origin), place(h.src)) == place(h.src)
            )
        if self.switch == "ring":
            size = {b: box.count(b) for b in set(box)}
            rules["switch"] = lambda _, h: (
                box[h.src] != box[h.dst]
                or len(h.links) == 1
                or (place(h.dst) - place(h.src)) % size[box[h.src]] == 1
            )
        return rules

    def _explain(self, network: Network, rules: dict[str, _Rule]) -> None:
        """Raise when some data have no way, naming the rules that collide."""
        hops = [h for r in range(network.num_ranks) for h in network.hops(r)]
        for origin in network.members:
            lost = set(network.members) - _reached(origin, hops, rules.values())
            if not lost:
                continue
            core = list(rules)
            for name in list(core):
                fewer = [rules[x] for x in core if x != name]
                if lost - _reached(origin, hops, fewer):
                    core.remove(name)
            raise TopologyError(
                f"sketch {self.name} on {network.name}: the data of rank {origin}"
                f" cannot reach ranks {sorted(lost)[:8]}; these rules leave no way:"
                f" {', '.join(self._spell(x, origin, network) for x in core)}."
                " Loosen one of them"
            )

    def _spell(self, rule: str, origin: int, network: Network) -> str:
        if rule == "carriers":
            place = origin - network.box.index(network.box[origin])
            return f"carriers {{{place}: {self.carriers.get(place)}}}"
        if rule == "crossings":
            return f"crossings {dict(self.crossings)}"
        return f'{rule} "{self.switch}"'


class _Near:
    """The hops on ways at most `slack` longer than the shortest under the rules."""

    def __init__(
        self, network: Network, rules: dict[str, _Rule], slack: int | None
    ) -> None:
        self._network, self._rules, self._slack = network, rules, slack
        self._hops: list[Hop] = []
        self._kept: dict[int, set[tuple[int, ...]]] = {}

    def allowed(self, chunk: Chunk, hop: Hop) -> bool:
        """Return whether a chunk may take a hop."""
        if not all(rule(chunk.origin, hop) for rule in self._rules.values()):
            return False
        if self._slack is None:
            return True
        if chunk.origin not in self._kept:
            self._kept[chunk.origin] = set(self._near(chunk.origin))
        return hop.links in self._kept[chunk.origin]

    def _near(self, origin: int) -> Iterator[tuple[int, ...]]:
        if not self._hops:
            n = self._network.num_ranks
            self._hops = [h for r in range(n) for h in self._network.hops(r)]
        open_hops = [
            h
            for h in self._hops
            if all(rule(origin, h) for rule in self._rules.values())
        ]
        out = _layers(origin, open_hops)
        assert self._slack is not None  # callers asked
        for h in open_hops:
            if h.src in out and out[h.src] + 1 <= out[h.dst] + self._slack:
                yield h.links


def _layers(origin: int, hops: list[Hop]) -> dict[int, int]:
    after: dict[int, list[int]] = {}
    for h in hops:
        after.setdefault(h.src, []).append(h.dst)
    far = {origin: 0}
    queue = [origin]
    for v in queue:
        for w in after.get(v, ()):
            if w not in far:
                far[w] = far[v] + 1
                queue.append(w)
    return far


def _reached(origin: int, hops: list[Hop], rules: Any) -> set[int]:
    tests = list(rules)
    return set(_layers(origin, [h for h in hops if all(t(origin, h) for t in tests)]))


def sketches() -> dict[str, Sketch]:
    """Return the shipped sketches by name."""
    folder = resources.files(__package__) / "sketches"
    return {
        entry.name.removesuffix(".toml"): _parse(
            entry.name.removesuffix(".toml"), entry.read_text(encoding="utf-8")
        )
        for entry in sorted(folder.iterdir(), key=lambda e: e.name)
        if entry.name.endswith(".toml")
    }


def sketches_for(machine: str) -> tuple[str, ...]:
    """Return the names of the shipped sketches for a machine."""
    return tuple(
        name
        for name, sketch in sketches().items()
        if any(fnmatch.fnmatch(machine, m) for m in sketch.machines)
    )


def load_sketch(name: str) -> Sketch:
    """Return a shipped sketch, or the one in a TOML file."""
    if name.endswith(".toml"):
        path = Path(name)
        if not path.is_file():
            raise TopologyError(f"no sketch file {name}; want a TOML file")
        return _parse(path.stem, path.read_text(encoding="utf-8"))
    shipped = sketches()
    if name not in shipped:
        raise UnknownNameError.among("sketch", name, shipped)
    return shipped[name]


def _parse(name: str, text: str) -> Sketch:
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as e:
        raise TopologyError(f"sketch {name}: {e}") from None
    if unknown := table.keys() - _KEYS:
        raise TopologyError(
            f"sketch {name}: got {', '.join(sorted(unknown))};"
            f" want only {', '.join(sorted(_KEYS))}"
        )
    if table.get("switch", "all") not in ("all", "ring"):
        raise TopologyError(
            f"sketch {name}, switch: got {table['switch']!r}; want 'all' or 'ring'"
        )
    try:
        crossings = {int(k): tuple(v) for k, v in table.get("crossings", {}).items()}
        carriers = {int(k): int(v) for k, v in table.get("carriers", {}).items()}
        turns = tuple((int(o), int(z)) for o, z in table.get("symmetry", ()))
        split = tuple(int(k) for k in table.get("split", ()))
    except (TypeError, ValueError) as e:
        raise TopologyError(
            f"sketch {name}: {e}; want crossings {{place = [places]}}, carriers"
            " {place = place}, symmetry [[o, z], ...], split [k, ...]"
        ) from None
    return Sketch(
        name=name,
        about=table.get("about", ""),
        machines=tuple(table.get("machines", ("*",))),
        crossings=crossings,
        carriers=carriers,
        slack=table.get("slack"),
        switch=table.get("switch", "all"),
        symmetry=turns,
        split=split,
    )
