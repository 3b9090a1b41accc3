"""A space-time picture of a program: ranks as columns, steps as rows, moves as arrows.

An operation's step is one more than that of the last operation it depends on, so a row
holds what may happen at once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from html import escape

from stretto.errors import CallError
from stretto.ir import Op, Program, Ref, Spans, spell_op

__all__ = ["steps_of", "svg"]

_MOST_ARROWS = 5000
_LEFT, _TOP, _COLUMN, _ROW = 70, 60, 110, 64
_COLORS = ("#2a6f97", "#bc4749", "#386641", "#9a6324", "#6a4c93", "#1b7f79")
_STYLE = (
    "text{font:12px ui-monospace,monospace;fill:#333}"
    ".title{font-size:15px;font-weight:bold}.rank{stroke:#ddd;stroke-width:1.5}"
    ".step{fill:#999}.move{stroke-width:1.6;fill:none;opacity:.8}"
)


def steps_of(program: Program) -> list[int]:
    """Return the step of every operation, from 0."""
    wrote: dict[tuple[int, str], Spans[int]] = defaultdict(Spans)
    used: dict[tuple[int, str], Spans[int]] = defaultdict(Spans)
    found = []
    for op in program.ops:
        after = [_latest(wrote, ref) for ref in (*op.srcs, op.dst)]
        step = 1 + max(*after, _latest(used, op.dst))
        found.append(step)
        _note(wrote, op.dst, step)
        for src in op.srcs:
            _note(used, src, max(step, _latest(used, src)))
    return found


def _latest(marks: dict[tuple[int, str], Spans[int]], ref: Ref) -> int:
    held = marks[ref.rank, ref.buffer].read(ref.start, ref.stop)
    return max((step for _, _, step in held), default=-1)


def _note(marks: dict[tuple[int, str], Spans[int]], ref: Ref, step: int) -> None:
    marks[ref.rank, ref.buffer].write(ref.start, ref.stop, step)


def svg(program: Program) -> str:
    """Return the picture as SVG text."""
    steps = steps_of(program)
    arrows = sum(len(op.srcs) for op in program.ops)
    if arrows > _MOST_ARROWS:
        raise CallError(
            f"{program.name}: {arrows} arrows are no picture; want at most "
            f"{_MOST_ARROWS}: show it for fewer ranks"
        )
    rows = max(steps, default=-1) + 1
    width = _LEFT + _COLUMN * program.num_ranks
    height = _TOP + _ROW * rows + 40
    title = f"{program.name}, {program.num_ranks} ranks, {rows} steps"
    frame = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {frame}>',
            f"<title>{escape(title)}</title><style>{_STYLE}</style>",
            _heads(),
            '<rect width="100%" height="100%" fill="#fff"/>',
            f'<text class="title" x="12" y="22">{escape(title)}</text>',
            *_grid(program.num_ranks, rows),
            *_moves(program.ops, steps),
            "</svg>\n",
        ]
    )


def _heads() -> str:
    marks = (
        f'<marker id="a{i}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        f'markerHeight="7" orient="auto"><path d="M0,0 L8,4 L0,8 z" fill="{color}"/>'
        "</marker>"
        for i, color in enumerate(_COLORS)
    )
    return f"<defs>{''.join(marks)}</defs>"


def _grid(num_ranks: int, rows: int) -> Iterable[str]:
    bottom = _TOP + _ROW * rows
    for rank in range(num_ranks):
        x = _x(rank)
        yield f'<line class="rank" x1="{x}" y1="{_TOP}" x2="{x}" y2="{bottom}"/>'
        yield f'<text x="{x}" y="{_TOP - 10}" text-anchor="middle">rank {rank}</text>'
    for row in range(rows):
        y = _TOP + _ROW * row + _ROW / 2 + 4
        yield f'<text class="step" x="12" y="{y:.0f}">step {row}</text>'


def _moves(ops: Iterable[Op], steps: Iterable[int]) -> Iterable[str]:
    for op, step in zip(ops, steps, strict=True):
        tone = op.dst.start % len(_COLORS)
        color = _COLORS[tone]
        top, bottom = _TOP + _ROW * step + 8, _TOP + _ROW * (step + 1) - 8
        x = _x(op.dst.rank)
        for source in sorted({src.rank for src in op.srcs}):
            what = f"<title>{escape(spell_op(op))}</title>"
            if source == op.dst.rank:
                yield (
                    f'<circle cx="{x}" cy="{bottom}" r="4" fill="{color}">{what}'
                    "</circle>"
                )
                continue
            a = _x(source)
            yield (
                f'<path class="move" stroke="{color}" marker-end="url(#a{tone})" '
                f'd="M{a},{top} C{a},{(top + bottom) / 2:.0f} '
                f'{x},{(top + bottom) / 2:.0f} {x},{bottom}">{what}</path>'
            )
        adds = "+" if len(op.srcs) > 1 else ""
        yield f'<text x="{x + 6}" y="{bottom + 2}">{adds}{op.dst.chunks}</text>'


def _x(rank: int) -> int:
    return _LEFT + _COLUMN * rank + _COLUMN // 2
