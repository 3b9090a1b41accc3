"""What lies where, by the definition of a layout: one element at a time."""

import itertools

import numpy as np
from hypothesis import strategies as st

from stretto.transfer.layouts import Layout


def memory(layout):
    """Return the tensors of a layout, as bytes, full of rubbish."""
    rng = np.random.default_rng(7)
    size = layout.part_bytes
    return [rng.integers(0, 256, size, dtype=np.uint8) for _ in range(layout.num_parts)]


def elements(layout, tensors):
    """Yield the coordinates in the whole tensor of every element, and its place.

    Pages are coordinates of the memory, not of the tensor.
    """
    parts = [range(a.start, a.stop) for a in layout.parts]
    axes = [range(a.size) for a in layout.axes]
    for tensor, part in zip(tensors, itertools.product(*parts), strict=True):
        flat = tensor
        for at in itertools.product(*axes):
            offset = sum(i * a.stride for i, a in zip(at, layout.axes, strict=True))
            where = {a.name: v for a, v in zip(layout.parts, part, strict=True)}
            where |= {a.name: a.start + i for a, i in zip(layout.axes, at, strict=True)}
            yield where, flat[offset : offset + layout.itemsize]


def key(layout, where, pages):
    """Return an element's place in the whole tensor, or None: its page is unnamed."""
    if not layout.is_paged:
        return tuple(sorted(where.items()))
    if where["B"] not in pages:
        return None
    token = pages.index(where["B"]) * layout.page_tokens + where.get("T", 0)
    rest = {n: v for n, v in where.items() if n not in "BT"}
    return (("token", token), *sorted(rest.items()))


@st.composite
def pairs(draw, *, dtypes=("uint8", "int32", "float16")):
    """Draw two memories of one small tensor, and pages to move."""
    free = draw(st.lists(st.sampled_from("LHDX"), min_size=1, max_size=3, unique=True))
    totals = {n: draw(st.sampled_from([1, 2, 3, 4])) for n in free}
    paged = draw(st.booleans())
    has_tokens = paged and draw(st.booleans())
    dtype = draw(st.sampled_from(dtypes))
    tokens = [draw(st.sampled_from([1, 2, 3, 4])) if has_tokens else 1 for _ in "ab"]
    sides = [_side(draw, totals, paged, has_tokens, tokens[i], dtype) for i in (0, 1)]
    if not paged:
        return (*sides, None, None, None)
    most = [side.num_pages for side in sides]
    src = draw(st.permutations(range(most[0])))
    dst = draw(st.permutations(range(most[1])))
    src, dst = (
        src[: draw(st.integers(1, most[0]))],
        dst[: draw(st.integers(1, most[1]))],
    )
    holds = min(len(src) * tokens[0], len(dst) * tokens[1])
    return (*sides, list(src), list(dst), draw(st.integers(0, holds)))


def _side(draw, totals, paged, has_tokens, tokens, dtype):
    words = []
    for name, total in totals.items():
        start = draw(st.integers(0, total - 1))
        stop = draw(st.integers(start + 1, total))
        words.append(f"{name}={total}[{start}:{stop}]")
    apart = draw(st.lists(st.sampled_from(words), max_size=1))
    within = [w for w in words if w not in apart]
    if paged:
        within.append(f"B={draw(st.integers(1, 4))}")
    if has_tokens:
        within.append(f"T={tokens}")
    if not within:
        within, apart = apart, []
    within = draw(st.permutations(within))
    before = [*apart, "|"] if apart else []
    made = Layout(" ".join([*before, *within, dtype]))
    if draw(st.booleans()):
        pad = draw(st.integers(1, 2))
        strides, need = [], made.itemsize
        for axis in reversed(made.axes):
            strides.append(need * pad)
            need = need * pad * axis.size
        made = made.strided(strides[::-1])
    return made
