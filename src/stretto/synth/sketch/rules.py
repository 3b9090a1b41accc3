"""Sketches: what a person knows about a machine, as rules that narrow the search.

A sketch is a small TOML file. Rules are applied before ways are looked for, and a
sketch that leaves some data no way is explained: which rank's data, to whom, and rules
that cannot hold together, each of which is needed for that. Rules speak of data that
spread; what is gathered or summed follows them backwards, but round a ring all go the
same way.
"""

from __future__ import annotations

import fnmatch
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stretto.errors import TopologyError, UnknownNameError, reading
from stretto.program.ir import whole
from stretto.registry import texts
from stretto.synth.network.model import Network
from stretto.synth.network.symmetry import Symmetry, symmetry_of
from stretto.synth.sketch.conflicts import colliding
from stretto.synth.sketch.open_hops import OpenHops, Rule

__all__ = ["Sketch", "load_sketch", "sketches", "sketches_for"]

_MOST = 1 << 16
_KEYS = {"about", "machines", "crossings", "carriers", "slack", "switch"} | {
    "symmetry",
    "split",
    "size",
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
    size: str = ""
    """The size it is made for, such as 1M; what is asked for when nothing else is."""

    def check(
        self, network: Network, origins: Iterable[int], *, backwards: bool = False
    ) -> OpenHops:
        """Return the ways that are left, or raise why these ranks' data have none."""
        if not any(fnmatch.fnmatch(network.name, m) for m in self.machines):
            raise TopologyError(
                f"sketch {self.name}: got machine {network.name};"
                f" want one like {', '.join(self.machines)}"
            )
        ways = self.ways(network, backwards=backwards)
        for origin in origins:
            lost = sorted(set(network.members) - ways.layers(origin).keys())
            if lost:
                core = colliding(ways, origin, lost[0])
                spelt = [self._spell(x, origin, network) for x in core]
                raise TopologyError(
                    f"sketch {self.name} on {network.name}: the data of rank {origin}"
                    f" cannot reach ranks {lost[:8]}; these rules leave no way:"
                    f" {', '.join(spelt) or 'none, the machine has none'}."
                    " Loosen one of them"
                )
        return ways

    def turns(self, network: Network) -> Symmetry | None:
        """Return the symmetry that the sketch asks for, if it asks for one."""
        n = network.num_ranks
        turns = []
        for o, z in self.symmetry:
            turn = tuple((r % z + o) % z + r // z * z for r in range(n))
            if n % z or symmetry_of(network, [turn]) is None:
                raise TopologyError(
                    f"sketch {self.name}, rule symmetry [{o}, {z}]:"
                    f" not a symmetry of {network.name}, or it fixes a rank"
                )
            turns.append(turn)
        if not turns:
            return None
        whole = symmetry_of(network, turns)
        if whole is None:
            raise TopologyError(
                f"sketch {self.name}, rule symmetry {list(self.symmetry)}:"
                " together they fix a rank; want fewer"
            )
        return whole

    def ways(self, network: Network, *, backwards: bool = False) -> OpenHops:
        """Return the rules, bound to a network; `backwards` if it is turned round."""
        box = network.box
        first = {b: box.index(b) for b in set(box)}

        def place(rank: int) -> int:
            return rank - first[box[rank]]

        rules: dict[str, Rule] = {}
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
            step = -1 if backwards else 1
            rules["switch"] = lambda _, h: (
                box[h.src] != box[h.dst]
                or len(h.links) == 1
                or (place(h.dst) - place(h.src)) * step % size[box[h.src]] == 1
            )
        return OpenHops(network=network, rules=rules, slack=self.slack)

    def _spell(self, rule: str, origin: int, network: Network) -> str:
        if rule == "carriers":
            place = origin - network.box.index(network.box[origin])
            return f"carriers {{{place}: {self.carriers.get(place)}}}"
        if rule == "crossings":
            return f"crossings {dict(self.crossings)}"
        return f'{rule} "{self.switch}"'


def sketches() -> dict[str, Sketch]:
    """Return the shipped sketches by name."""
    found = texts("stretto.synth.sketch", "shipped")
    return {name: _parse(name, text) for name, text in found.items()}


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
        with reading(TopologyError, f"sketch {path.stem}", "text in UTF-8"):
            text = path.read_text(encoding="utf-8")
        return _parse(path.stem, text)
    shipped = sketches()
    if name not in shipped:
        raise UnknownNameError.among("sketch", name, shipped)
    return shipped[name]


def _parse(name: str, text: str) -> Sketch:
    with reading(TopologyError, f"sketch {name}", "TOML"):
        table = tomllib.loads(text)
    if unknown := table.keys() - _KEYS:
        raise TopologyError(
            f"sketch {name}: got {', '.join(sorted(unknown))};"
            f" want only {', '.join(sorted(_KEYS))}"
        )
    if table.get("switch", "all") not in ("all", "ring"):
        raise TopologyError(
            f"sketch {name}, switch: got {table['switch']!r}; want 'all' or 'ring'"
        )
    want = (
        "about, machines and size as texts, slack as a number, crossings {place = "
        "[places]}, carriers {place = place}, symmetry [[o, z], ...], split [k, ...]"
    )
    with reading(TopologyError, f"sketch {name}", want):
        return Sketch(
            name=name,
            about=_text(table.get("about", "")),
            machines=tuple(_text(m) for m in table.get("machines", ("*",))),
            crossings={
                whole(k): tuple(_count(place) for place in v)
                for k, v in table.get("crossings", {}).items()
            },
            carriers={
                whole(k): _count(v) for k, v in table.get("carriers", {}).items()
            },
            slack=_count(table["slack"]) if "slack" in table else None,
            switch=table.get("switch", "all"),
            symmetry=tuple(
                (_count(o), _count(z, 1)) for o, z in table.get("symmetry", ())
            ),
            split=tuple(_count(k, 1) for k in table.get("split", ())),
            size=_text(table.get("size", "")),
        )


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{str(value)[:40]!r} is no text")
    return value


def _count(value: Any, least: int = 0) -> int:
    """Return a whole number, of places or of parts."""
    if type(value) is not int or not least <= value <= _MOST:
        raise TypeError(f"got {str(value)[:40]}; want a number, {least} to {_MOST}")
    return value
