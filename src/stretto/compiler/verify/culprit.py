"""Which line of a refused program is to blame, and what it did, in ranks and chunks.

Only what was refused is looked at here: the proof itself keeps no history. One wrong
output chunk is followed back, operation by operation, to the inputs it was made of.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from stretto.compiler.verify.contents import Contents, members
from stretto.program.collectives import Collective, Shape
from stretto.program.ir import INPUT, OUTPUT, Op, Program, Ref, spell_op

Leaf = tuple[int, int]
"""A contribution: a rank, and a chunk of its input."""
Node = tuple[int, int]
"""What an operation stored: its index, and which of its chunks counted from 0."""
Sizes = list[tuple[int, int, int]]
_MANY = 8
"""Sources of an operation, or ranks, that are still named one by one."""


def at_line(program: Program, op: Op) -> str:
    """Return the author's line of an operation, and the operation."""
    place, text = program.place(op), _spell(op)
    return f"{place}: {text}" if place != str(op) else text


def _spell(op: Op) -> str:
    """Return an operation as it is printed; of many sources the first and the last."""
    if len(op.srcs) <= _MANY:
        return spell_op(op)
    few = f"{op.srcs[0]} + {op.srcs[1]} + ... + {op.srcs[-1]}"
    return f"{op.dst} = {few} ({len(op.srcs)} of them)"


def _ranks(who: list[int]) -> str:
    if len(who) == 1:
        return f"rank {who[0]}"
    if len(who) > _MANY and who == list(range(who[0], who[-1] + 1)):
        return f"ranks {who[0]} to {who[-1]}"
    return f"ranks {who}"


def _line(program: Program, op: Op) -> str:
    """Return the author's line; the operation, where nobody wrote one."""
    place = program.place(op)
    return place if place != str(op) else f"'{_spell(op)}'"


# Values: a chunk holds other contributions than it should.


class _History:
    """What one chunk was made of: the operations that its value came through."""

    def __init__(self, program: Program, last: int, chunk: int) -> None:
        self.program = program
        self.sources: dict[Node, list[Node | Leaf]] = {}
        self.leaves: dict[Node, list[bool]] = {}
        end = program.ops[last].dst
        self.top = last, chunk - end.start
        self._follow(last, end.rank, end.buffer, chunk)
        self.held: dict[Node, Counter[Leaf]] = {}
        for node in sorted(self.sources):
            self.held[node] = Counter()
            for parts in self.parts(node):
                self.held[node] += parts

    def _follow(self, last: int, rank: int, buffer: str, chunk: int) -> None:
        """Go back through the program, from reads to what wrote last before them."""
        wanted: dict[tuple[int, str], dict[int, list[tuple[Node, int]]]]
        wanted = defaultdict(dict)
        wanted[rank, buffer][chunk] = []
        for index in range(last, -1, -1):
            op = self.program.ops[index]
            pending = wanted.get((op.dst.rank, op.dst.buffer))
            if not pending:
                continue
            for at in [c for c in pending if op.dst.start <= c < op.dst.stop]:
                readers = pending.pop(at)
                offset = at - op.dst.start
                node = index, offset
                for reader, position in readers:
                    self.sources[reader][position] = node
                self.sources[node] = [(s.rank, s.start + offset) for s in op.srcs]
                self.leaves[node] = [s.buffer == INPUT for s in op.srcs]
                for position, src in enumerate(op.srcs):
                    if src.buffer != INPUT:
                        held = wanted[src.rank, src.buffer]
                        held.setdefault(src.start + offset, []).append((node, position))

    def op(self, node: Node) -> Op:
        return self.program.ops[node[0]]

    def parts(self, node: Node) -> Iterator[Counter[Leaf]]:
        """Go through what each source of an operation contributes."""
        for source, leaf in zip(self.sources[node], self.leaves[node], strict=True):
            yield Counter([source]) if leaf else self.held[source]

    def carrying(self, node: Node, leaf: Leaf) -> list[int]:
        """Return which sources of an operation carry a contribution."""
        return [i for i, parts in enumerate(self.parts(node)) if leaf in parts]

    def entry(self, node: Node, leaf: Leaf) -> Node:
        """Return the operation that a contribution came in with."""
        position = self.carrying(node, leaf)[0]
        while not self.leaves[node][position]:
            node = self.sources[node][position]
            position = self.carrying(node, leaf)[0]
        return node

    def doubled(self, leaf: Leaf) -> Node:
        """Return the first operation that made one contribution count twice."""
        return min(
            node
            for node, held in self.held.items()
            if held[leaf] > 1 and all(p[leaf] < 2 for p in self.parts(node))
        )

    def made(self) -> Node:
        """Return the operation that made the value; what follows it only copies."""
        node = self.top
        while len(self.sources[node]) == 1 and not self.leaves[node][0]:
            node = self.sources[node][0]
        return node


def explain_value(
    program: Program, last: int, chunk: int, want: Contents
) -> tuple[str, str]:
    """Return the line to change, and what it does.

    `last` is the operation that stored the chunk last; `want` is what belongs in it, as
    seen from there.
    """
    history = _History(program, last, chunk)
    ((shift, ranks, _),) = want
    needs = {(rank, chunk + shift) for rank in members(ranks)}
    held = history.held[history.top]
    strange = sorted(held.keys() - needs)
    extra = sorted(leaf for leaf in needs if held[leaf] > 1)
    if extra:
        blamed, what = _doubled(history, extra[0])
    elif strange:
        rank, other = strange[0]
        blamed = history.entry(history.top, strange[0])
        text = _spell(history.op(blamed))
        what = f"{text} brings input[{other}] of rank {rank}, which does not belong"
    else:
        blamed = history.made()
        what = f"It was made by {_spell(history.op(blamed))}"
    place = program.place(history.op(blamed))
    stored = program.place(program.ops[last])
    if stored != place:
        what += f". Last stored at {_line(program, program.ops[last])}"
    return _line(program, history.op(blamed)), what


def _doubled(history: _History, leaf: Leaf) -> tuple[Node, str]:
    rank, chunk = leaf
    blamed = history.doubled(leaf)
    op = history.op(blamed)
    first, second = history.carrying(blamed, leaf)[:2]
    told = f"{_spell(op)} adds input[{chunk}] of rank {rank} a second time"
    if history.leaves[blamed][first] and history.leaves[blamed][second]:
        return blamed, told
    # What is read directly is the addition; what was stored before holds it already.
    before = second if history.leaves[blamed][first] else first
    entry = history.entry(history.sources[blamed][before], leaf)
    since = _line(history.program, history.op(entry))
    return blamed, f"{told}: {op.srcs[before]} holds it since {since}"


# Chunks that are missing.


def explain_missing(
    program: Program, rank: int, start: int, stop: int, need: tuple[int, int]
) -> str:
    """Say which output chunks nobody stores, whose input they need, and where to look.

    `need` is the input chunk that belongs in the first of them, and a set of ranks.
    """
    chunk, ranks = need
    gap = Ref(rank, OUTPUT, start, stop)
    first = "it" if stop == start + 1 else Ref(rank, OUTPUT, start, start + 1)
    what = (
        f"{program.name}: nobody stores {gap}; "
        f"{first} needs input[{chunk}] of {_ranks(members(ranks))}"
    )
    near = [o for o in program.ops if (o.dst.rank, o.dst.buffer) == (rank, OUTPUT)]
    if not near:
        head = f"{program.source}: " if program.source else ""
        return f"{head}{what}. No line stores anything in rank {rank}'s output"
    closest = min(near, key=lambda op: _distance(op.dst, start, stop))
    line = _line(program, closest)
    return f"{line}: {what}. The nearest that is stored is {closest.dst}, by this line"


def _distance(ref: Ref, start: int, stop: int) -> int:
    return max(ref.start - stop, start - ref.stop, 0)


def unwritten(program: Program, op: Op, ref: Ref) -> str:
    """Say that an operation reads a chunk before anybody wrote it, and who does."""
    what = f"{at_line(program, op)} reads {ref}, which nobody wrote before this line"
    if op.dst in op.srcs and op.dst.rank == ref.rank and op.dst.buffer == ref.buffer:
        return f"{what}; want = where it is stored first, += after that"
    for other in program.ops:
        dst = other.dst
        same = dst.rank == ref.rank and dst.buffer == ref.buffer
        if same and dst.start <= ref.start < dst.stop:
            return f"{what}; {_line(program, other)} writes it later"
    return what


# Sizes.


def explain_sizes(
    program: Program,
    kind: Collective,
    shape: Shape,
    op: Op,
    src: Ref,
    sizes: tuple[Sizes, Sizes],
) -> str:
    """Say which chunks of the two sides of an assignment differ in size, and why."""
    ours, theirs = sizes
    offset = next(
        at
        for at in sorted({a for a, _, _ in [*ours, *theirs]})
        if _symbol(ours, at) != _symbol(theirs, at)
    )
    sides = []
    for ref, runs in ((op.dst, ours), (src, theirs)):
        chunk = Ref(ref.rank, ref.buffer, ref.start + offset, ref.start + offset + 1)
        size = _spell_symbol(kind, shape, _symbol(runs, offset))
        since = _sized_by(program, op, chunk)
        sides.append(f"{chunk} has the size of {size}{since}")
    return (
        f"{at_line(program, op)}: the sides differ in size: {', '.join(sides)}. A call "
        f"may give these different numbers of elements; want chunks of one size on "
        f"both sides"
    )


def _symbol(runs: Sizes, at: int) -> int:
    return next((s + at - a for a, b, s in runs if a <= at < b), -1)


def _spell_symbol(kind: Collective, shape: Shape, symbol: int) -> str:
    pieces = kind.chunks_per_part(shape)
    part, piece = divmod(symbol, pieces)
    who = shape.members
    chunk = f"chunk {piece} of {pieces} of " if pieces > 1 else ""
    parts = kind.num_parts(shape)
    if parts == 1:
        return f"{chunk}the vector" if chunk else "the whole vector"
    if parts == len(who) ** 2:
        source, target = divmod(part, len(who))
        return f"{chunk}rank {who[source]}'s part for rank {who[target]}"
    owner = who[part] if parts == len(who) else part
    return f"{chunk}rank {owner}'s part"


def _sized_by(program: Program, op: Op, chunk: Ref) -> str:
    """Say who gave a scratch chunk its size: who stored in it first."""
    if chunk.buffer in (INPUT, OUTPUT):
        return ""
    for other in program.ops:
        if other is op:
            break
        dst = other.dst
        same = dst.rank == chunk.rank and dst.buffer == chunk.buffer
        if same and dst.start <= chunk.start < dst.stop:
            return f" (since {_line(program, other)})"
    return ""
