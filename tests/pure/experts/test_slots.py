"""Maps of slots: every routing of small sizes, and rounding of every short float."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest

from stretto.experts import compiled, elements
from stretto.experts.cpu import quantised

IDS = (-1, 0, 1, 2, 3)


def every_routing(tokens, k):
    """Return all ids of so many tokens, of 4 experts and none."""
    many = itertools.product(IDS, repeat=tokens * k)
    return np.array(list(many), np.int64).reshape(5 ** (tokens * k), tokens, k)


def maps_of(every, owner, num_ranks):
    """Return slots and pairs of all routings, as they are computed."""
    num, tokens, k = every.shape
    slots = np.full((num, tokens, num_ranks), 99, np.int64)
    pairs = np.full((num, tokens, k), 99, np.int64)
    counts, num_pairs = np.zeros((2, num, num_ranks), np.int64)
    for at in range(num):
        said = compiled.mapped(
            every[at], owner, slots[at], counts[at], pairs[at], num_pairs[at]
        )
        assert -1 == said
    return slots, pairs, counts, num_pairs


def check_maps(tokens, k, num_ranks):
    """Each token has the next place at each of its ranks, and each choice, too."""
    every = every_routing(tokens, k)
    owner = np.arange(4, dtype=np.int64) * num_ranks // 4
    slots, pairs, counts, num_pairs = maps_of(every, owner, num_ranks)
    rank_of = np.where(every < 0, -1, owner[every])
    for q in range(num_ranks):
        here = rank_of == q
        goes = here.any(2)
        assert np.array_equal(goes.sum(1), counts[:, q])
        assert np.array_equal(np.where(goes, goes.cumsum(1) - 1, -1), slots[:, :, q])
        flat = here.reshape(len(every), -1)
        numbers = (flat.cumsum(1) - 1).reshape(here.shape)
        assert np.array_equal(flat.sum(1), num_pairs[:, q])
        assert (pairs[here] == numbers[here]).all()
    assert (pairs[rank_of < 0] == -1).all()


def check_places(tokens, k, align):
    """Each choice has a line of its own at its expert, in order, behind the last's."""
    every = every_routing(tokens, k).astype(np.int32)
    num = len(every)
    places = np.full((num, tokens, k), 99, np.int64)
    counts, starts = np.zeros((num, 4), np.int64), np.zeros((num, 5), np.int64)
    for at in range(num):
        compiled.placed(every[at], counts[at], starts[at], places[at], align)
    flat = every.reshape(num, -1)
    begin = np.zeros(num, np.int64)
    for e in range(4):
        here = flat == e
        want = begin[:, None] + here.cumsum(1) - 1
        assert (places.reshape(num, -1)[here] == want[here]).all()
        assert np.array_equal(begin, starts[:, e])
        assert np.array_equal(here.sum(1), counts[:, e])
        begin = begin + np.ceil(here.sum(1) / align).astype(np.int64) * align
    assert np.array_equal(begin, starts[:, 4])
    assert (places[every < 0] == -1).all()


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4])
def test_slots_are_counts_of_what_stands_before(num_ranks):
    """Every routing of up to 2 tokens and 2 choices, to 4 experts; and of 3 by 1."""
    for tokens, k in ((0, 1), (1, 1), (2, 1), (3, 1), (1, 2), (2, 2)):
        check_maps(tokens, k, num_ranks)


def test_places_are_counts_of_what_stands_before():
    """Likewise at the experts."""
    for align in (1, 4):
        for tokens, k in ((0, 1), (1, 1), (3, 1), (1, 2), (2, 2)):
            check_places(tokens, k, align)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("tokens", [3, 4])
def test_every_routing_up_to_four_tokens(tokens):
    """4 ranks, 4 tokens, 4 experts, 2 choices: all 390,625."""
    for num_ranks in (2, 4):
        check_maps(tokens, 2, num_ranks)
    check_maps(tokens, 1, 3)
    check_places(tokens, 2, 1)
    check_places(tokens, 2, 3)


def test_a_bad_id_is_found_where_it_stands():
    """The first that is neither an expert nor -1."""
    owner, one = np.zeros(4, np.int64), np.zeros(1, np.int64)
    for bad in (4, -2, 1 << 40):
        ids = np.array([[0, -1], [3, bad]])
        said = compiled.mapped(
            ids, owner, np.empty((2, 1), np.int64), one.copy(), np.empty_like(ids),
            one.copy(),
        )  # fmt: skip

        assert 3 == said


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_short_floats_are_read_and_rounded_as_everybody_does(name):
    """Every value is read; sums of neighbours, and halves between them, are rounded."""
    kind = np.dtype(name if name == "float16" else ml_dtypes.bfloat16)
    raw = np.arange(1 << 16, dtype=np.uint16)
    values = raw.view(kind).astype(np.float32)
    good = np.isfinite(values)
    total = np.zeros(1 << 16, np.float32)
    elements.add(total, raw.reshape(1, -1), 0, 1.0, elements.KINDS[name])
    assert np.array_equal(values[good], total[good])
    assert np.isnan(total[np.isnan(values)]).all()

    ordered = np.sort(values[good])
    middles = ((ordered[1:].astype(np.float64) + ordered[:-1]) / 2).astype(np.float32)
    beside = np.nextafter(middles, np.float32(np.inf)), np.nextafter(middles, -np.inf)
    wide = np.concatenate([values, middles, *(b.astype(np.float32) for b in beside)])
    wide = np.concatenate([wide, np.float32([1e38, -1e38, 65519.9, 65520, np.inf])])
    made = np.empty(wide.size, np.uint16)
    elements.narrow(wide, made, elements.KINDS[name])
    with np.errstate(over="ignore", invalid="ignore"):
        want = wide.astype(kind)
    seen = ~np.isnan(wide)
    assert np.array_equal(want[seen].view(np.uint16), made[seen])
    assert np.isnan(made.view(kind)[~seen].astype(np.float32)).all()


@pytest.mark.parametrize("how", ["fp8_128", "fp8_128_pow2"])
def test_fp8_rows_are_within_their_scales(how):
    """Bytes times scales are the rows, but for rounding; powers of two are that."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal((64, 256)).astype(np.float32)
    x *= (10.0 ** rng.integers(-30, 30, (64, 1))).astype(np.float32)
    x[0] = 0
    out, scales = quantised(x, "float32", how)
    back = out.view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    back = back.reshape(64, 2, 128) * scales[:, :, None]
    wide = x.reshape(64, 2, 128)
    most = np.maximum(np.abs(wide).max(-1, keepdims=True), 1e-4)

    assert (np.abs(back - wide) <= np.abs(wide) / 16 + most / 2**15).all()
    if how.endswith("pow2"):
        assert (np.frexp(scales)[0] == 0.5).all()
    else:
        assert (np.abs(back[1:]).max(-1) > 0).any()
