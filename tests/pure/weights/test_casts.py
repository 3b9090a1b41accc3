"""Types on the way: made at the source, bit for bit what the destination would make."""

import numpy as np
import pytest

from stretto.errors import CallError, LayoutError
from stretto.program.collectives import narrow, storage, widen
from stretto.transfer.copying.convert import converted
from stretto.transfer.copying.mixing import copied, mixed
from stretto.weights.casts import Float8, made_of, quantised
from stretto.weights.tensors import owned

NAMES = ("float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")


def raw_of(dtype, shape=(24, 20), seed=0):
    wide = np.random.default_rng(seed).normal(0, 3, shape).astype(np.float32)
    return np.asarray(narrow(wide, dtype)).view(storage(dtype))


def own_of(dtype="float32", shape=(24, 20), layout=None, name="w"):
    """Return a tensor as it is owned; what NumPy lacks is said by a stand-in."""
    torch = pytest.importorskip("torch")
    raw = raw_of(dtype, shape)
    given = torch.from_numpy(raw.copy()).view(getattr(torch, dtype))
    return owned({name: given}, {name: layout} if layout else {})[0]


def written(made):
    places = [np.full(h.extent, 3, storage(h.dtype)) for h in made.helds]
    if made.how is None:
        places[0][...] = made.own.array
    else:
        made.write(places)
    return places


@pytest.mark.parametrize("dst", NAMES)
@pytest.mark.parametrize("src", NAMES)
def test_a_cast_is_what_the_destination_would_make(src, dst):
    """Bit for bit, between all types that are cast."""
    own = own_of(src)
    made = made_of(own, dst)
    (place,) = written(made)

    assert dst == made.helds[0].dtype
    assert np.array_equal(converted(own.array, src, dst).view(place.dtype), place)


def test_patterns_decide_and_integers_stay():
    """The first that fits; None keeps a tensor."""
    cast = {"*norm*": None, "*": "bfloat16"}
    ints = owned({"step": np.arange(3)})[0]

    assert made_of(own_of(name="a.norm.weight"), cast).how is None
    assert "bfloat16" == made_of(own_of(name="a.weight"), cast).how
    assert made_of(ints, "bfloat16").how is None
    with pytest.raises(CallError, match="float32 does not become 'int8'"):
        made_of(own_of(), "int8")


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("block", [None, (8, 8), (16, 5)])
def test_fp8_has_scales_for_the_tensor_or_for_each_block(dtype, block):
    """Each block's largest value becomes the largest there is; a loop says the same."""
    own, how = own_of(), Float8(dtype=dtype, block=block)
    made = made_of(own, how)
    bits, scales = written(made)
    most = {"float8_e4m3fn": 448.0, "float8_e5m2": 57344.0}[dtype]
    rows, columns = block or own.array.shape
    again = widen(bits, dtype)

    assert ["w", "w_scale_inv" if block else "w_scale"] == [h.name for h in made.helds]
    for i in range(0, 24, rows):
        for j in range(0, 20, columns):
            part = own.array[i : i + rows, j : j + columns]
            scale = np.float32(np.abs(part).max()) / np.float32(most)
            got = scales[i // rows, j // columns] if block else scales
            here = again[i : i + rows, j : j + columns]

            assert scale == got
            assert most == np.abs(here).max()
            assert np.allclose(part, here * scale, rtol=0.13, atol=scale)


def test_fp8_of_shards_is_fp8_of_the_whole():
    """Scales of a shard are those of its blocks, as the whole tensor has them."""
    how = Float8(block=(8, 4))
    whole = written(made_of(own_of(), how))
    own = own_of()
    part = owned({"w": own.array[8:16]}, {"w": "R=24[8:16] C=20 float32"})[0]
    made = made_of(part, how)
    bits, scales = written(made)

    assert np.array_equal(whole[0][8:16], bits)
    assert np.array_equal(whole[1][1:2], scales)
    assert ((1, 2), (0, 5)) == made.helds[1].box
    with pytest.raises(LayoutError, match="8:16 of axis -2 cuts a block of 6"):
        made_of(part, Float8(block=(6, 4)))
    with pytest.raises(LayoutError, match="one scale for all of it needs all"):
        made_of(part, Float8())


def test_zeros_have_a_scale_of_one():
    """Nothing is divided by nothing."""
    bits, scales = written(made_of(owned({"w": np.zeros((4, 4), "f4")})[0], Float8()))

    assert not bits.any()
    assert 1.0 == scales


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32", "float64", "bool"])
def test_a_sum_is_that_of_parts_and_of_no_other_elements(dtype):
    """However it is cut; one bit that changes, or two elements for one, is another."""
    rng = np.random.default_rng(0)
    array = rng.integers(0, 2 if dtype == "bool" else 90, (30, 14)).astype(dtype)
    cut = [array[:7], array[7:, :5], array[7:, 5:]]
    changed = array.copy()
    changed[3, 3] = not changed[3, 3] if dtype == "bool" else changed[3, 3] + 1

    assert mixed(array) == sum(map(mixed, cut)) & 0xFFFFFFFF
    for source in (array, array.T, array[::2, ::3]):
        there = np.zeros_like(source)
        assert mixed(source) == copied(there, source)
        assert np.array_equal(source, there)
    assert mixed(array) == mixed(array.T) == mixed(array.reshape(5, 6, 14)[:, :, ::1])
    assert mixed(array) != mixed(changed)
    assert mixed(array[::2, ::3]) == mixed(np.ascontiguousarray(array[::2, ::3]))


@pytest.mark.parametrize("block", [None, (8, 4)])
@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("power", range(-149, 127, 3))
def test_what_is_finite_stays_finite_however_small(dtype, block, power):
    """And near: scales of few bits would make quotients that are too large."""
    wide = np.random.default_rng(power + 200).uniform(-1, 1, (16, 16))
    x = np.ldexp(wide, power).astype(np.float32)
    held, scales = quantised(x, "float32", Float8(dtype=dtype, block=block))
    each = scales if block is None else np.kron(scales, np.ones(block))
    back = np.asarray(widen(held, dtype), np.float64) * each

    assert np.isfinite(back).all()
    least = 2.0**-126 * (2.0**-10 if dtype == "float8_e4m3fn" else 2.0**-17)
    assert (np.abs(back - x) <= np.abs(x).max() / 8 + least).all()
