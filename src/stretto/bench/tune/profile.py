"""The outcome: a TOML file that the runtime reads, with the figures it rests on."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stretto import topology
from stretto.errors import TopologyError
from stretto.program import collectives
from stretto.runtime.choice import dtype_class, spell_size
from stretto.search.halving import Decision

_ONLY = ("one_way", "beside")
"""What a row may be about alone."""
_BEYOND = 2
"""A size so many times smaller or larger than any that was measured is not decided."""


def rule_of(
    collective: str,
    memory: str,
    num_ranks: int,
    decided: Mapping[int, Decision],
    dtype: str,
) -> dict[str, Any]:
    """Return a row of the profile: up to so many bytes, this.

    Where nothing is combined it serves all element types, else those of a class.
    Between two sizes that were measured the border lies in their geometric middle.
    Below half the smallest and above twice the largest the table says nothing.
    """
    sizes = sorted(decided)
    rows: list[list[str]] = []
    for nbytes, after in zip(sizes, [*sizes[1:], 0], strict=True):
        up_to = spell_size(_middle(nbytes, after) if after else _BEYOND * nbytes)
        pin = decided[nbytes].pin
        if rows and rows[-1][1] == pin:
            rows[-1][0] = up_to
        else:
            rows.append([up_to, pin])
    figures = [
        [spell_size(n), _short(decided[n].us), _short(decided[n].untuned_us)]
        for n in sizes
    ]
    combines = collectives.get(collective).reduces
    return {
        "collective": collective,
        "dtypes": dtype_class(dtype) if combines else "",
        "memory": memory,
        "ranks": [num_ranks, num_ranks],
        "least": spell_size(sizes[0] // _BEYOND),
        "sizes": rows,
        "figures": figures,
    }


def merged(
    path: Path, executor: str, rules: Sequence[Mapping[str, Any]], about: str
) -> str:
    """Return a profile's text: the file's rules, with these in place of their like.

    What it says of rows stays: nobody tunes that. It is of this machine, unless it was
    one that counts everywhere.
    """
    kept: list[Mapping[str, Any]] = []
    divided: Sequence[Mapping[str, Any]] = ()
    machine = topology.here(executor)
    if path.is_file():
        try:
            data = tomllib.loads(path.read_text(encoding="utf-8"))
        except tomllib.TOMLDecodeError as e:
            raise TopologyError(f"profile {path}: {e}; want it whole, or gone") from e
        fresh = {_key(rule) for rule in rules}
        kept = [r for r in data.get("rule", ()) if _key(r) not in fresh]
        divided = data.get("rows", ())
        machine = data.get("machine", "")
    both = sorted((*kept, *rules), key=lambda r: (not r.get("dtypes"), _key(r)))
    return text_of(executor, both, about, machine) + _text_of_rows(divided)


def _text_of_rows(divided: Sequence[Mapping[str, Any]]) -> str:
    lines = []
    for rows in divided:
        lines += ["", "[[rows]]", *(f"{k} = {json.dumps(v)}" for k, v in rows.items())]
    return "\n".join([*lines, ""]) if lines else ""


def text_of(
    executor: str, rules: Sequence[Mapping[str, Any]], about: str, machine: str = ""
) -> str:
    """Return the text of a profile; what was measured on a machine counts there."""
    lines = [
        "# Written by `stretto tune`. figures: size, microseconds of what was chosen,",
        "# and of what would have been chosen without this file.",
        f"executor = {_quoted(executor)}",
        *([f"machine = {_quoted(machine)}"] if machine else []),
        f"about = {_quoted(about)}",
    ]
    for rule in rules:
        lines += [
            "",
            "[[rule]]",
            f"collective = {_quoted(rule['collective'])}",
            f"memory = {_quoted(rule['memory'])}",
            f"ranks = {list(rule['ranks'])}",
            *([f"dtypes = {_quoted(rule['dtypes'])}"] if rule.get("dtypes") else []),
            *([f"least = {_quoted(rule['least'])}"] if rule.get("least") else []),
            *(f"{word} = true" for word in _ONLY if rule.get(word)),
            "sizes = [",
            *(f"  [{_quoted(size)}, {_quoted(pin)}]," for size, pin in rule["sizes"]),
            "]",
            "figures = [",
            *(
                f"  [{_quoted(size)}, {us}, {untuned}],"
                for size, us, untuned in rule.get("figures", ())
            ),
            "]",
        ]
    return "\n".join(lines) + "\n"


def _key(rule: Mapping[str, Any]) -> tuple[Any, ...]:
    where = str(rule["collective"]), str(rule["memory"]), tuple(rule["ranks"])
    only = (not rule.get(word) for word in _ONLY)  # such rows come first
    return (*where, str(rule.get("dtypes", "")), *only)


def _middle(low: int, high: int) -> int:
    """Return the power of two nearest to the geometric middle, below `high`.

    A size that was measured is served by what was decided for it.
    """
    exponent = round((math.log2(max(1, low)) + math.log2(high)) / 2)
    return max(low, min(1 << exponent, high // 2))


def _short(us: float) -> float:
    return float(f"{us:.3g}") if math.isfinite(us) else 0.0


def _quoted(text: str) -> str:
    return json.dumps(str(text))
