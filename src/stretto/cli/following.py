"""What follows a simulated call: others, and computing between them, as a step does.

    stretto simulate all_gather/ring --machine h200x8 --size 16M \\
        --then "compute 300us" --then "reduce_scatter/ring 64M" --repeat 4 \\
        --trace step.trace

All ranks enter a call when the one before has ended everywhere, and compute equally
long. A call that comes again is simulated once.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from stretto.errors import CallError
from stretto.trace import CALL, MARKS, CallKind, Comm, Recording

_UNITS = {"us": 1.0, "ms": 1e3, "s": 1e6}
_TIME = re.compile(r"([0-9.]+)(us|ms|s)")
_COMPUTE = "compute"
_MOST_US = 1e9
_MOST_CALLS = 4096
_MOST_ROWS = 1 << 25
"""Of steps in a recording: two gigabytes of memory."""


@dataclass(frozen=True, slots=True)
class StepPart:
    """A call of so many bytes, or computing for so long."""

    target: str = ""
    size: str = ""
    us: float = 0.0


def add_following(parser: argparse.ArgumentParser) -> None:
    """Add what follows the call, and how often all of it is done."""
    parser.add_argument(
        "--then",
        action="append",
        default=[],
        metavar="WHAT",
        help="what follows: 'compute 300us', or 'ALGORITHM SIZE'; may be repeated",
    )
    parser.add_argument("--repeat", type=int, default=1, help="the whole [1]")


def parts_of(args: argparse.Namespace) -> list[StepPart]:
    """Return what was asked for: the call that is named first, then what follows."""
    if not 1 <= args.repeat <= _MOST_CALLS:
        raise CallError(f"--repeat {args.repeat}; want 1 to {_MOST_CALLS}")
    return [StepPart(args.algorithm, args.sizes), *map(_part, args.then)]


def _part(text: str) -> StepPart:
    words = text.split()
    if len(words) != 2:
        raise CallError(f"--then {text[:60]!r}; want 'compute 300us' or 'NAME SIZE'")
    what, much = words
    if what != _COMPUTE:
        return StepPart(what, much)
    found = _TIME.fullmatch(much)
    try:
        us = float(found[1]) * _UNITS[found[2]] if found else -1.0
    except ValueError:
        us = -1.0
    if not 0 <= us <= _MOST_US:
        raise CallError(f"--then {text[:60]!r}; want a time such as 300us, 2ms or 1s")
    return StepPart(us=us)


def joined(
    parts: Sequence[StepPart], recorded: Callable[[StepPart], Recording], repeat: int
) -> Recording:
    """Return one recording of all parts, as often as they are repeated."""
    calls, steps, kinds = [], [], list[CallKind]()
    marks: list[tuple[int, int]] = []
    now, number, num_rows = 0, 0, 0
    whole: Recording | None = None
    for part in [part for _ in range(repeat) for part in parts]:
        if not part.target:
            marks.append((now, now := now + round(part.us * 1e3)))
            continue
        one = recorded(part)
        whole, number = whole or one, number + 1
        if one.kinds[0] not in kinds:
            kinds.append(one.kinds[0])
        num_rows += len(one.steps)
        if num_rows > _MOST_ROWS:
            raise CallError(
                f"--repeat {repeat} with --trace: more than {_MOST_ROWS} steps, of "
                f"which {part.target} {part.size} alone has {len(one.steps)}; want "
                "fewer repeats, or no recording"
            )
        calls.append(_moved(one.calls, number, now))
        calls[-1]["kind"] = kinds.index(one.kinds[0])
        steps.append(_moved(one.steps, number, now))
        now = int(calls[-1]["end"].max())
    assert whole is not None  # the first part is a call
    found = replace(
        whole,
        calls=np.concatenate(calls),
        steps=_sorted(steps),
        kinds=tuple(kinds),
        run=replace(whole.run, title=f"simulation of a step, {repeat} times"),
    )
    return _marked(found, marks) if marks else found


def _moved(table: np.ndarray, number: int, by: int) -> np.ndarray:
    """Return rows of one call as those of the call of that number, so much later."""
    moved = table.copy()
    moved["seq"] = number
    for name in ("enqueue", "start", "begin", "end"):
        if name in (moved.dtype.names or ()):
            moved[name] += by
    return moved


def _sorted(tables: Sequence[np.ndarray]) -> np.ndarray:
    steps = np.concatenate(tables)
    return steps[np.lexsort((steps["begin"], steps["lane"], steps["rank"]))]


def _marked(recording: Recording, marks: Sequence[tuple[int, int]]) -> Recording:
    """Add, for each rank, when it computed."""
    n, first = len(recording.ranks), len(recording.comms)
    rows = np.zeros((n, len(marks)), CALL)
    rows["rank"] = np.arange(n)[:, None]
    rows["comm"] = first + np.arange(n)[:, None]
    rows["seq"], rows["kind"], rows["state"] = (
        np.arange(len(marks)) + 1,
        len(recording.kinds),
        1,
    )
    rows["enqueue"] = rows["start"] = np.maximum(1, [begin for begin, _ in marks])
    rows["end"] = np.maximum(2, [end for _, end in marks])
    comms = (Comm(name=f"{MARKS} {r}", members=(r,)) for r in range(n))
    return replace(
        recording,
        calls=np.concatenate([recording.calls, rows.ravel()]),
        comms=(*recording.comms, *comms),
        kinds=(*recording.kinds, CallKind(collective=_COMPUTE, executor="sim")),
    )
