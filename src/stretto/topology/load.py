"""Machines by name or by file. Every file in `machines/` is a family, found by looking.

A family's `names` are patterns, such as `h200x{ranks}`: the numbers in a name are its
parameters. `known` lists the names worth listing.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stretto.errors import TopologyError, UnknownNameError, why_unread
from stretto.registry import texts
from stretto.topology.clos import add_fat_tree, add_leaf_spine
from stretto.topology.machine import Machine
from stretto.topology.parts import Costs, Ports
from stretto.topology.reader import Reader, Values
from stretto.topology.shapes import (
    DraftMachine,
    add_boxes,
    add_dragonfly,
    add_lists,
    add_torus,
)
from stretto.topology.symmetry import is_symmetry

__all__ = ["load", "names", "patterns"]

_N = "(?:0|[1-9][0-9]{0,8})"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parameter:
    name: str
    default: int | tuple[int, ...]
    least: int
    most: int
    is_list: bool

    def read(self, text: str) -> int | tuple[int, ...] | None:
        """Return the value that a name gives, or None when it is out of range."""
        parts = tuple(int(part) for part in text.split("x"))
        if not all(self.least <= part <= self.most for part in parts):
            return None
        return parts if self.is_list else parts[0]

    @property
    def wanted(self) -> str:
        """Return what a value must be."""
        return f"{self.name} from {self.least} to {self.most}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Family:
    where: str
    table: Mapping[str, Any]
    patterns: tuple[str, ...]
    known: tuple[str, ...]
    parameters: tuple[_Parameter, ...]
    is_file: bool = False
    """Whether somebody's own file says so, not one that is shipped."""

    @property
    def defaults(self) -> dict[str, int | tuple[int, ...]]:
        """Return the parameters of a name that gives none."""
        return {p.name: p.default for p in self.parameters}

    def match(self, name: str) -> dict[str, str] | None:
        """Return the parts of a name that fits one of the patterns."""
        for pattern in self.patterns:
            regex = re.escape(pattern)
            for p in self.parameters:
                number = rf"{_N}(?:x{_N})*" if p.is_list else _N
                regex = regex.replace(
                    re.escape(f"{{{p.name}}}"), f"(?P<{p.name}>{number})"
                )
            if found := re.fullmatch(regex, name):
                return found.groupdict()
        return None


def load(name: str | Path) -> Machine:
    """Return the machine of that name, or that a `.toml` file describes."""
    if isinstance(name, Path) or name.endswith(".toml"):
        family = _read_file(Path(name))
        return _build(family, Path(name).stem, family.defaults)
    refusals: list[str] = []
    for family in _families():
        given = family.match(name)
        if given is None:
            continue
        values = family.defaults
        bad = []
        for p in (p for p in family.parameters if p.name in given):
            value = p.read(given[p.name])
            values[p.name] = p.default if value is None else value
            bad += [p.wanted] * (value is None)
        if not bad:
            return _build(family, name, values)
        refusals += bad
    if refusals:
        raise TopologyError(f"machine {name!r}: want {' or '.join(refusals)}")
    near = difflib.get_close_matches(name, names(), n=1, cutoff=0.5)
    raise UnknownNameError.among("machine", name, names() if near else patterns())


def names() -> tuple[str, ...]:
    """Return the names worth listing, sorted; families know more (`patterns`)."""
    return tuple(sorted(name for family in _families() for name in family.known))


def patterns() -> tuple[str, ...]:
    """Return the patterns of all names, such as `h200x{ranks}`, sorted."""
    return tuple(sorted({p for family in _families() for p in family.patterns}))


@functools.cache
def _families() -> tuple[_Family, ...]:
    found = texts("stretto.topology", "machines")
    return tuple(_parse_family(text, f"machines/{n}.toml") for n, text in found.items())


def _read_file(path: Path) -> _Family:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as e:
        raise TopologyError(f"{path}: {why_unread(e)}; want a TOML file") from None
    return replace(_parse_family(text, str(path)), is_file=True)


def _parse_family(text: str, where: str) -> _Family:
    top = Reader.of(text, where=where)
    stem = Path(where).stem
    return _Family(
        where=where,
        table=top.whole,
        patterns=top.texts("names") if "names" in top else (stem,),
        known=top.texts("known") if "known" in top else (),
        parameters=tuple(_parse_parameters(top.table("parameters"))),
    )


def _parse_parameters(parameters: Reader) -> Iterator[_Parameter]:
    for name in parameters.names:
        table = parameters.table(name)
        is_list = table.flag("list", False)
        yield _Parameter(
            name=name,
            default=table.integers("default") if is_list else table.integer("default"),
            least=table.integer("min", 1),
            most=table.integer("max", 1 << 16),
            is_list=is_list,
        )
        table.done()


def _build(family: _Family, name: str, values: Values) -> Machine:
    top = Reader(family.table, where=family.where, path="", values=values)
    for key in ("names", "known", "parameters"):
        if key in top:
            top.raw(key)
    about, kind = top.text("about"), top.text("kind")
    costs = _costs(top.table("costs"))
    ports = _ports(top.table("ports"))
    draft = _draft(top)
    add_lists(draft, top)
    top.done()
    machine = Machine(
        name=name,
        kind=kind,
        num_ranks=draft.num_ranks,
        links=tuple(draft.links),
        switches=tuple(draft.switches),
        ranks_per_box=draft.ranks_per_box,
        nics_per_box=draft.nics_per_box,
        costs=costs,
        ports=ports,
        symmetries=tuple(draft.symmetries),
        about=about,
    )
    if family.is_file:  # those that are shipped are tested
        for where, moved in draft.claimed.items():
            if not is_symmetry(machine, moved):
                raise TopologyError(
                    f"{family.where}, {where}: got {moved}; want a symmetry: it maps"
                    " some link to none, or to one of another speed"
                )
    return machine


def _draft(top: Reader) -> DraftMachine:
    shapes = [
        key
        for key in ("box", "torus", "dragonfly", "leaf_spine", "fat_tree", "ranks")
        if key in top
    ]
    match shapes:
        case ["box"]:
            return add_boxes(top.table("box"), top.table("repeat"))
        case ["torus"]:
            return add_torus(top.table("torus"))
        case ["dragonfly"]:
            return add_dragonfly(top.table("dragonfly"))
        case ["leaf_spine"]:
            return add_leaf_spine(top.table("leaf_spine"))
        case ["fat_tree"]:
            return add_fat_tree(top.table("fat_tree"))
        case ["ranks"]:
            num_ranks = top.integer("ranks", least=1)
            size = top.integer("ranks_per_box", num_ranks, least=1)
            return DraftMachine(num_ranks=num_ranks, ranks_per_box=size)
        case _:
            raise TopologyError(
                f"{top.where}: got {shapes or 'no shape'};"
                " want one of [box], [torus], [dragonfly], [leaf_spine], [fat_tree]"
                " or ranks = N"
            )


def _costs(table: Reader) -> Costs:
    defaults = Costs()
    fields = {
        key: table.number(key, getattr(defaults, key))
        for key in Costs.__dataclass_fields__
        if key != "background_puts"
    }
    if not 0 < fields["packet_efficiency"] <= 1:
        raise table.wrong("packet_efficiency", "a share above 0, at most 1")
    for key in ("copy", "reduce", "lane", "block", "pull", "engine"):
        if not fields[f"{key}_gbytes_per_s"] > 0:
            raise table.wrong(f"{key}_gbytes_per_s", "a rate above 0")
    behind = table.flag("background_puts", defaults.background_puts)
    table.done()
    return Costs(background_puts=behind, **fields)


def _ports(table: Reader) -> Ports:
    """Return how switches queue; every figure is finite."""
    plain = Ports()
    fields: dict[str, Any] = {}
    for key in ("buffer_us", "ecn_min_us", "ecn_max_us"):
        fields[key] = table.number(key, getattr(plain, key))
        if not fields[key] <= _MOST_US:
            raise table.wrong(key, f"a time from 0 to {_MOST_US:g}, in us")
    for key in ("ecn_max_share", "pause_share"):
        fields[key] = table.number(key, getattr(plain, key))
        if not fields[key] <= 1:
            raise table.wrong(key, "a share from 0 to 1")
    for key in ("pauses", "spreads"):
        fields[key] = table.flag(key, getattr(plain, key))
    packet = table.integer("packet_nbytes", plain.packet_nbytes, least=64)
    if packet > _MOST_PACKET:
        raise table.wrong("packet_nbytes", f"a whole number from 64 to {_MOST_PACKET}")
    if fields["ecn_max_us"] < fields["ecn_min_us"]:
        raise table.wrong(
            "ecn_max_us", f"at least ecn_min_us, {fields['ecn_min_us']:g}"
        )
    seed = table.integer("hash_seed", plain.hash_seed)
    table.done()
    return Ports(packet_nbytes=packet, hash_seed=seed, **fields)


_MOST_US, _MOST_PACKET = 1e6, 1 << 16
