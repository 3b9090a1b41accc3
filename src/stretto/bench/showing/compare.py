"""Compare two documents: what became slower by more than noise.

Every row keeps the times of its batches. Their medians are drawn anew a thousand times;
a row is slower when even the lower end of the interval of the ratio is above what is
allowed. Whether the machine itself was slower that day, the peers tell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stretto.bench.peers import OURS
from stretto.bench.showing.report import table
from stretto.bench.stats import geomean
from stretto.runtime.choice import spell_size
from stretto.search.noise import Interval, ratio_interval

_KEY = (
    *("test", "nbytes", "ranks", "dtype", "op", "contender", "mode", "buffer"),
    *("registered", "in_place"),
)
_FEWEST = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class RowVerdict:
    """How one row fares in the second document."""

    test: str
    nbytes: int
    contender: str
    interval: Interval | None
    said: str
    """`slower`, `faster`, `same`, `wrong now`, `gone`, or `too few times`."""

    @property
    def is_regression(self) -> bool:
        """Return whether it is stretto's, and worse."""
        ours = self.contender == OURS or "/" in self.contender
        return ours and self.said in ("slower", "wrong now", "gone")


def compare(
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    *,
    allowed: float = 0.05,
    seed: int = 0,
) -> list[RowVerdict]:
    """Return a verdict for every row of `before` that was right."""
    later = {_key(row): row for row in after["rows"]}
    return [
        _verdict(row, later.get(_key(row)), allowed, seed)
        for row in before["rows"]
        if row["ok"]
    ]


def show_verdicts(verdicts: Sequence[RowVerdict]) -> str:
    """Return a table, and what it comes to."""
    lines = [("test", "size", "who", "after/before", "95 %", "")]
    for v in verdicts:
        ratio = f"{v.interval.ratio:.3f}" if v.interval else ""
        spread = f"{v.interval.low:.3f} to {v.interval.high:.3f}" if v.interval else ""
        size = spell_size(v.nbytes)
        lines.append((v.test, size, v.contender, ratio, spread, v.said))
    means = [
        f"{who}: geomean {mean:.3f}"
        for who in dict.fromkeys(v.contender for v in verdicts)
        if (
            mean := geomean(
                v.interval.ratio for v in verdicts if v.interval and v.contender == who
            )
        )
    ]
    worse = sum(v.is_regression for v in verdicts)
    said = f"{worse} of {len(verdicts)} rows are worse" if worse else "nothing is worse"
    return "\n".join((table(lines), *means, said))


def _verdict(
    row: Mapping[str, Any], other: Mapping[str, Any] | None, allowed: float, seed: int
) -> RowVerdict:
    interval = None
    if other is None or other["refused"]:
        said = "gone"
    elif not other["ok"]:
        said = "wrong now"
    elif min(len(row["times_us"]), len(other["times_us"])) < _FEWEST:
        said = "too few times"
    else:
        interval = ratio_interval(row["times_us"], other["times_us"], seed=seed)
        said = "same"
        if interval.low > 1 + allowed:
            said = "slower"
        elif interval.high < 1 - allowed:
            said = "faster"
    return RowVerdict(
        test=row["test"],
        nbytes=row["nbytes"],
        contender=row["contender"],
        interval=interval,
        said=said,
    )


def _key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in _KEY)
