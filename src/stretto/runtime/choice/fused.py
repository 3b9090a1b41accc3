"""How a GPU had better run a call that is more than its collective."""

from __future__ import annotations

from stretto.compiler.plan import Schedule
from stretto.program import algorithms
from stretto.program.collectives import storage
from stretto.program.epilogues import Spec
from stretto.runtime.choice.question import Choice, Question
from stretto.runtime.choice.rowrules import RowRule

_PACKETS_UP_TO = 8 << 20
"""Bytes up to which data announce themselves."""


def fused_choice(
    choice: Choice,
    rule: RowRule,
    asked: Question,
    epilogue: Spec | None,
    *,
    pitched: bool,
) -> Choice:
    """Return what serves a call with an epilogue, or one whose rows have a pitch.

    Copy engines compute nothing and know no pitch; rows of an epilogue stay whole, so
    there blocks are rows.
    """
    if epilogue is None and not pitched:
        return choice
    protocol = "packets" if asked.nbytes <= _PACKETS_UP_TO else "bulk"
    if epilogue is not None and epilogue.row:
        return _by_rows(asked, epilogue, protocol, rule)
    phases = (choice.schedule, *map(choice.schedule.of, choice.schedule.phases))
    by_threads = all(how.protocol in ("packets", "bulk") for how in phases)
    if by_threads and not pitched:
        return choice
    blocks = max(4, min(64, asked.nbytes // asked.num_ranks >> 14))
    schedule = Schedule(protocol=protocol, blocks=blocks)
    if pitched:  # each part by itself
        return Choice(algorithms.get(f"{asked.collective}/one_shot"), schedule)
    return Choice(choice.algorithm, schedule)


def _by_rows(asked: Question, spec: Spec, protocol: str, rule: RowRule) -> Choice:
    """Return a schedule whose threads have one cell of one row, as long as it can.

    Several blocks have a row together (codegen/rowwise.py). Of two shots, which give
    everybody all parts, each thread keeps a cell of one of them, or of few.
    """
    collective, num_ranks, size = asked.collective, asked.num_ranks, asked.nbytes
    received = size * (num_ranks - 1)
    small = collective == "all_reduce" and received <= rule.one_shot_up_to
    two_shot = collective == "all_reduce" and not small
    name = f"{collective}/{'two_shot' if two_shot else 'one_shot'}"
    row_bytes = spec.row * storage(spec.dtype).itemsize
    rows = max(1, -(-(size if small else size // num_ranks) // row_bytes))
    cells = -(-row_bytes // 16)
    share = rule.share(spec, rows, cells, alone=small)
    part = -(-cells // share)
    parts = min(num_ranks if two_shot else 1, max(1, rule.most_threads // part))
    most = rule.most_in_pairs if small and part <= rule.most_threads else 0
    schedule = Schedule(
        protocol=protocol,
        blocks=min(rows * share, max(most, rule.most_blocks)),
        threads=min(rule.most_threads, -(-parts * part // 32) * 32),
    )
    return Choice(algorithms.get(name), schedule)
