"""One line of the result: a contender in a case, with its figures."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from stretto.bench.measuring.loop import Timings
from stretto.bench.peers import OURS
from stretto.bench.stats import TimeSummary, summarise
from stretto.bench.workload.cases import PATTERNS, CallCase
from stretto.bench.workload.task import BenchTask
from stretto.program import collectives
from stretto.program.collectives import storage

_OF_CASE = ("test", "collective", "nbytes", "dtype", "op", "in_place")
_OF_TASK = ("mode", "buffer", "registered")
_KEPT = 200
"""Times a row keeps for later comparison."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRow:
    """Figures of one contender in one case. GB are 10^9 bytes."""

    test: str
    collective: str
    nbytes: int
    ranks: int
    dtype: str
    op: str
    contender: str
    mode: str
    buffer: str
    registered: bool
    in_place: bool
    ok: bool
    """Whether it gave what the oracle says, before and after it was timed."""
    wrong: str = ""
    refused: str = ""
    """Why there are no figures."""
    note: str = ""
    algorithm: str = ""
    min_us: float | None = None
    p50_us: float | None = None
    p95_us: float | None = None
    p99_us: float | None = None
    max_us: float | None = None
    slowest_rank: int | None = None
    first_us: float | None = None
    """The first call of all: choosing, proving and binding are in it."""
    batches: int = 0
    turns: int = 0
    """Calls in a batch."""
    algbw_gbps: float | None = None
    busbw_gbps: float | None = None
    messages_per_s: float | None = None
    cpu_share: float | None = None
    sms: int | None = None
    """Blocks that wait for each other, so the SMs of a GPU that are taken; 0 where
    copy engines move everything."""
    limit_share: float | None = None
    """The least time over this one: hearing from everybody once, and moving what must
    be moved at the rate at which all can copy."""
    ratio: float | None = None
    """Its median over stretto's: above 1, stretto is faster."""
    hidden: float | None = None
    """The share of the call that computing beside it hid."""
    times_us: tuple[float, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return what JSON can carry."""
        return asdict(self)


def row_of(
    case: CallCase,
    task: BenchTask,
    name: str,
    found: Timings,
    algorithm: str,
    ours: Timings,
    floor: dict[str, float],
    hides: float | None,
) -> BenchRow:
    """Return the row of a contender; `ours` are stretto's own figures."""
    figures: dict[str, Any] = {}
    if found.us.size:
        summary = summarise(found.us, found.whole_us)
        figures = _figures(case, summary, floor)
        figures |= {
            "batches": found.us.shape[1],
            "turns": found.turns,
            "cpu_share": found.cpu_share,
            "first_us": found.first_us,
            "times_us": tuple(
                float(f"{t:.4g}") for t in found.batch_us[:_KEPT].tolist()
            ),
        }
        if name != OURS and ours.us.size:
            base = float(np.median(ours.batch_us))
            figures["ratio"] = summary.p50_us / base if base else None
        figures["hidden"] = hides
        if algorithm and task.device == "cuda":
            figures["sms"] = _sms(algorithm)
    return BenchRow(
        **{name: getattr(case, name) for name in _OF_CASE},
        **{name: getattr(task, name) for name in _OF_TASK},
        ranks=case.num_ranks,
        contender=name,
        ok=not found.wrong and not found.refused,
        wrong=found.wrong,
        refused=found.note if found.refused else "",
        note="" if found.refused else found.note,
        algorithm=algorithm,
        **figures,
    )


def _figures(
    case: CallCase, summary: TimeSummary, floor: dict[str, float]
) -> dict[str, Any]:
    us = summary.p50_us
    figures: dict[str, Any] = asdict(summary)
    if not us > 0:
        return figures
    if case.collective == "p2p":
        streams = 2 if case.test == "bibw" else len(case.pairs)
        figures["messages_per_s"] = 1e6 / us * streams
        figures["algbw_gbps"] = case.nbytes / us / 1e3 * streams
        figures["busbw_gbps"] = figures["algbw_gbps"]
    elif case.nbytes:
        factor = _bus_factor(case)
        figures["algbw_gbps"] = case.nbytes / us / 1e3
        figures["busbw_gbps"] = case.nbytes / us / 1e3 * factor
    rate = floor.get("copy_gbps", math.nan)
    if rate > 0:
        moved_us = figures.get("busbw_gbps", 0.0) * us / rate
        least_us = floor.get("flag_us", 0.0) + moved_us
        figures["limit_share"] = min(1.0, least_us / us)
    return figures


def _bus_factor(case: CallCase) -> float:
    """Return nccl-tests' factor; of a pattern, what the busiest rank has for others."""
    if case.test not in (*PATTERNS, "matrix"):
        return collectives.bus_factor(case.collective, case.num_ranks)
    matrix = case.matrix()
    np.fill_diagonal(matrix, 0)
    busiest = max(matrix.sum(axis=0).max(), matrix.sum(axis=1).max())
    return float(busiest) * storage(case.dtype).itemsize / case.nbytes


def _sms(algorithm: str) -> int:
    words = algorithm.split()
    if "engine" in words:
        return 0
    told = [w.removeprefix("blocks=") for w in words if w.startswith("blocks=")]
    return int(told[0]) if told else 1
