"""The lines that loops of emitted files have in common."""

from __future__ import annotations

from collections.abc import Sequence

from stretto.synth.network.symmetry import Symmetry

__all__ = ["fetched", "indented", "loop", "only_root", "relay_slot", "stored"]


def relay_slot(count: int, width: int = 1) -> str:
    """Return how a relay's slot is named where data are sent; nothing without any."""
    at = "held" if width == 1 else f"held * {width} : held * {width} + {width}"
    return f'scratch("relay", {count * width})[{at}]' if count else ""


def fetched(data: str, relay: str) -> list[str]:
    """Return the lines that take data from a relay's slot, or from where they are."""
    if not relay:
        return [f"data = {data}"]
    return ["if held >= 0:", f"    data = src.{relay}", "else:", f"    data = {data}"]


def stored(target: str, relay: str) -> list[str]:
    """Return the lines that store data: in a relay's slot, or where they belong."""
    if not relay:
        return [f"{target} = data"]
    kept = f"dst.{relay}".replace("held", "kept")
    return ["if kept >= 0:", f"    {kept} = data", "else:", f"    {target} = data"]


def loop(
    symmetry: Symmetry,
    header: str,
    names: Sequence[str],
    body: list[str],
    *,
    waves: int = 0,
) -> list[str]:
    """Return a loop over a table, and inside it over the images of its ranks.

    With `waves` the table is gone through so often, each row for its next piece.
    """
    ranks = [f"{name} = ranks[{name}_]" for name in names]
    if symmetry.order > 1:
        ranks = [f"{name} = ranks[image({name}_, turn)]" for name in names]
        inner = ["for turn in IMAGES:", *indented([*ranks, *body])]
    else:
        inner = [*ranks, *body]
    if not waves:
        return [header, *indented(inner)]
    turn = [
        "i = wave - first",
        "if not 0 <= i < len(pieces):",
        "    continue  # not begun yet, or all through",
        "piece = pieces[i]",
    ]
    return [
        f"for wave in range({waves}):",
        *indented([header, *indented([*turn, *inner])]),
    ]


def indented(lines: list[str]) -> list[str]:
    """Return lines one level further in."""
    return [f"    {line}" for line in lines]


def only_root(root: int) -> list[str]:
    """Return the lines that refuse another root."""
    return [
        f"if root != {root}:",
        f'    raise ValueError(f"made for root {root}, not {{root}}")',
    ]
