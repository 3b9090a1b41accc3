"""A space-time picture of a program: ranks as columns, steps as rows, moves as arrows.

An operation's step is one more than that of the last operation it depends on, so a row
holds what may happen at once. The moves of a step between the same two ranks are one
arrow; what a rank has stored by a step is one label.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from html import escape

from stretto.errors import CallError
from stretto.program.ir.program import Op, Program, spell_op
from stretto.program.ir.steps import steps_of

_MOST_MOVES = 5000
_MOST_LINES = 200
"""Of a text that a notebook shows."""
_LEFT, _TOP, _FOOT = 70, 84, 24
_WIDE, _NARROW, _PAGE = 110, 46, 1200
"""The width of a column, at most and at least; of all columns, where that can be."""
_LOW, _HIGH, _LABEL = 46, 200, 22
"""The height of a step's arrows, at least and at most; and of its labels."""
_DENSE = 5
"""More arrows a rank than these, in a step, and one rank's are drawn above the rest."""
_TOLD = 12
"""Operations that a tooltip lists."""
_COLORS = (  # of Okabe and Ito: apart for every kind of colour vision
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000",
    "#8a8a8a",
)  # fmt: skip
_STYLE = (
    "text{font:12px ui-monospace,monospace;fill:#222}"
    ".title{font-size:15px;font-weight:bold}.rank{stroke:#ddd;stroke-width:1.5}"
    ".step,.key{fill:#555;font-size:11px}"
    ".what{font-size:11px;text-anchor:middle;paint-order:stroke;stroke:#fff;"
    "stroke-width:4px}"
    ".move{stroke-width:1.6;fill:none}.sum{stroke-dasharray:5 3}"
    ".faint{stroke-width:1.2}.move:hover{stroke-width:4;opacity:1}"
)


@dataclass(slots=True)
class _Step:
    """What happens at once: arrows by (from, to), and what each rank stores."""

    arrows: dict[tuple[int, int], list[Op]] = field(default_factory=dict)
    stored: dict[int, list[Op]] = field(default_factory=dict)

    def add(self, op: Op) -> None:
        self.stored.setdefault(op.dst.rank, []).append(op)
        for source in sorted({src.rank for src in op.srcs} - {op.dst.rank}):
            self.arrows.setdefault((source, op.dst.rank), []).append(op)


@dataclass(frozen=True, slots=True)
class _Page:
    """Where things are."""

    num_ranks: int
    column: int
    tops: Sequence[int]
    """Where each step begins, and the last one ends."""

    def x(self, rank: int) -> int:
        return _LEFT + self.column * rank + self.column // 2


def page(program: Program) -> str:
    """Return what notebooks show: the picture, or the text where that is too large."""
    if sum(len(op.srcs) for op in program.ops) <= _MOST_MOVES:
        return svg(program)
    return text_page(program.summary, str(program))


def text_page(summary: str, text: str) -> str:
    """Return a long text as HTML: what it is, then its first lines."""
    lines = text.splitlines()
    more = [f"... {len(lines) - _MOST_LINES} lines more"] * (len(lines) > _MOST_LINES)
    shown = escape("\n".join([*lines[:_MOST_LINES], *more]))
    return f"<p>{escape(summary)}</p><pre>{shown}</pre>"


def svg(program: Program) -> str:
    """Return the picture as SVG text."""
    moves = sum(len(op.srcs) for op in program.ops)
    if moves > _MOST_MOVES:
        raise CallError(
            f"{program.name}: {moves} moves are no picture; want at most "
            f"{_MOST_MOVES}: show it for fewer ranks"
        )
    numbers = steps_of(program)
    steps = [_Step() for _ in range(max(numbers, default=-1) + 1)]
    for op, number in zip(program.ops, numbers, strict=True):
        steps[number].add(op)
    page = _lay_out(program.num_ranks, steps)
    width = max(_LEFT + page.column * program.num_ranks + 12, 680)
    height = page.tops[-1] + _FOOT
    title = f"{program.name}, {program.num_ranks} ranks, {len(steps)} steps"
    frame = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {frame}>',
            f"<title>{escape(title)}</title><style>{_STYLE}</style>",
            _heads(),
            '<rect width="100%" height="100%" fill="#fff"/>',
            f'<text class="title" x="12" y="22">{escape(title)}</text>',
            *_legend(program, dense=any(_is_dense(page, step) for step in steps)),
            *_grid(page),
            *(line for n, step in enumerate(steps) for line in _draw(page, n, step)),
            "</svg>\n",
        ]
    )


def _lay_out(num_ranks: int, steps: Sequence[_Step]) -> _Page:
    column = max(_NARROW, min(_WIDE, _PAGE // num_ranks))
    tops = [_TOP]
    for step in steps:
        far = sum(abs(a - b) for a, b in step.arrows) / max(1, len(step.arrows))
        arrows = max(_LOW, min(_HIGH, int(far * column / 2)))
        tops.append(tops[-1] + arrows + _LABEL)
    return _Page(num_ranks, column, tops)


def _is_dense(page: _Page, step: _Step) -> bool:
    return len(step.arrows) > _DENSE * page.num_ranks


def _heads() -> str:
    marks = (
        f'<marker id="a{i}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        f'markerHeight="7" markerUnits="userSpaceOnUse" orient="auto">'
        f'<path d="M0,0 L8,4 L0,8 z" fill="{color}"/></marker>'
        for i, color in enumerate(_COLORS)
    )
    return f"<defs>{''.join(marks)}</defs>"


def _legend(program: Program, *, dense: bool) -> Iterator[str]:
    """Say what lines, dots, labels and colours mean."""
    yield (
        '<line stroke="#555" stroke-width="1.6" x1="12" y1="36" x2="40" y2="36"/>'
        '<text class="key" x="46" y="40">copied</text>'
        '<line stroke="#555" stroke-width="1.6" class="sum" x1="100" y1="36" x2="128" '
        'y2="36"/>'
        '<text class="key" x="134" y="40">added up there</text>'
        '<circle cx="246" cy="36" r="4" fill="#555"/>'
        '<text class="key" x="256" y="40">at the rank itself</text>'
        '<text class="key" x="396" y="40">+3: a sum, of chunk 3; (9): of 9 chunks'
        "</text>"
    )
    chunks = max((op.dst.stop for op in program.ops), default=0)
    shown = min(chunks, len(_COLORS))
    for i in range(shown):
        yield (
            f'<rect x="{12 + 30 * i}" y="48" width="10" height="10" '
            f'fill="{_COLORS[i]}"/><text class="key" x="{25 + 30 * i}" y="57">{i}'
            "</text>"
        )
    rest = f"chunks, colours again from {shown}" if chunks > shown else "chunks"
    if dense:
        rest += "; where arrows are many, what rank 0 sends is drawn strong"
    yield f'<text class="key" x="{18 + 30 * shown}" y="57">{rest}</text>'


def _grid(page: _Page) -> Iterator[str]:
    bottom = page.tops[-1]
    word = "rank " if page.column >= 70 else ""
    for y in (_TOP - 8, bottom + 16):
        if not word:
            yield f'<text class="step" x="12" y="{y}">rank</text>'
        for rank in range(page.num_ranks):
            x = page.x(rank)
            yield f'<text x="{x}" y="{y}" text-anchor="middle">{word}{rank}</text>'
    for rank in range(page.num_ranks):
        x = page.x(rank)
        yield f'<line class="rank" x1="{x}" y1="{_TOP}" x2="{x}" y2="{bottom}"/>'
    for n, (top, end) in enumerate(zip(page.tops, page.tops[1:], strict=False)):
        y = (top + end - _LABEL) // 2 + 4
        yield f'<text class="step" x="12" y="{y}">step {n}</text>'


def _draw(page: _Page, number: int, step: _Step) -> Iterator[str]:
    top, bottom = page.tops[number] + 2, page.tops[number + 1] - _LABEL
    dense = _is_dense(page, step)
    faint = _DENSE * page.num_ranks / max(1, len(step.arrows)) / 5
    # what is faint comes first, so that nothing strong is hidden
    for (a, b), ops in sorted(step.arrows.items(), reverse=True):
        tone = ops[0].dst.start % len(_COLORS)
        kind = "move sum" if any(len(op.srcs) > 1 for op in ops) else "move"
        end = f'marker-end="url(#a{tone})"'
        if dense and a != 0:
            kind, end = f"{kind} faint", f'opacity="{max(0.06, faint):.2f}"'
        yield (
            f'<path class="{kind}" stroke="{_COLORS[tone]}" {end} '
            f'd="M{page.x(a)},{top} L{page.x(b)},{bottom}">{_tooltip(ops)}</path>'
        )
    for rank, ops in step.stored.items():
        x = page.x(rank)
        own = [op for op in ops if any(src.rank == rank for src in op.srcs)]
        if own:
            tone = own[0].dst.start % len(_COLORS)
            yield (
                f'<circle cx="{x}" cy="{bottom}" r="4" fill="{_COLORS[tone]}">'
                f"{_tooltip(own)}</circle>"
            )
        yield (
            f'<text class="what" x="{x}" y="{bottom + 15}">'
            f"{_label(ops, page.column)}{_tooltip(ops)}</text>"
        )


def _tooltip(ops: Sequence[Op]) -> str:
    lines = [spell_op(op) for op in ops[:_TOLD]]
    if len(ops) > _TOLD:
        lines.append(f"and {len(ops) - _TOLD} more")
    return f"<title>{escape(chr(10).join(lines))}</title>"


def _label(ops: Sequence[Op], room: int) -> str:
    """Return the chunks that a rank stores: all of them, or how many."""
    adds = "+" if any(len(op.srcs) > 1 for op in ops) else ""
    chunks = sorted({c for op in ops for c in range(op.dst.start, op.dst.stop)})
    text = adds + ",".join(_runs(chunks))
    return text if 7 * len(text) <= room else f"{adds}({len(chunks)})"


def _runs(numbers: Iterable[int]) -> Iterator[str]:
    """Yield 0, 2-5, 7 for the numbers 0 2 3 4 5 7."""
    first = last = -1
    for n in (*numbers, -1):
        if first >= 0 and n != last + 1:
            yield str(first) if first == last else f"{first}-{last}"
            first = -1
        first, last = (n, n) if first < 0 else (first, n)
