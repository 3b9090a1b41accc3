"""8-bit floats are rounded as PyTorch casts, bit for bit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.nightly import examples

from stretto.program.collectives import FLOAT8, Operator, combine, narrow, widen

torch = pytest.importorskip("torch")
ALL = np.arange(256, dtype=np.uint8)


def cast(values, dtype):
    tensor = torch.from_numpy(np.array(values, np.float32))
    return tensor.to(getattr(torch, dtype)).view(torch.uint8).numpy()


@pytest.mark.parametrize("dtype", FLOAT8)
def test_every_byte_has_the_value_of_pytorch(dtype):
    """Subnormal numbers, infinities and NaN, too."""
    want = torch.from_numpy(ALL).view(getattr(torch, dtype)).float().numpy()

    assert np.array_equal(want, widen(ALL, dtype), equal_nan=True)


@pytest.mark.parametrize("dtype", FLOAT8)
@pytest.mark.filterwarnings("ignore:overflow")
def test_values_half_way_between_two_bytes_are_rounded_as_pytorch_does(dtype):
    """And the floats just beside the middle, and beyond the largest number."""
    values = np.sort(widen(ALL, dtype)[np.isfinite(widen(ALL, dtype))])
    middle = (values[1:] + values[:-1]) / 2
    edges = [464, 480, 57344, 61439, 61440, 65536, 1e30, np.inf, -np.inf, 1e-30]
    near = np.concatenate([values, middle, np.array(edges, np.float32)])
    near = np.concatenate([near, np.nextafter(near, np.float32(np.inf)), -near])
    near = near.astype(np.float32)

    assert np.array_equal(cast(near, dtype), narrow(near, dtype))


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.floats(width=32, allow_nan=False), max_size=40))
@pytest.mark.parametrize("dtype", FLOAT8)
def test_any_value_is_rounded_as_pytorch_does(dtype, values):
    """Whatever the float."""
    wide = np.array(values, np.float32)

    assert np.array_equal(cast(wide, dtype), narrow(wide, dtype))


@pytest.mark.parametrize("dtype", FLOAT8)
def test_nan_stays_nan(dtype):
    """Of either sign."""
    assert np.isnan(widen(narrow(np.float32([np.nan, -np.nan]), dtype), dtype)).all()


def test_a_sum_is_rounded_once():
    """Three addends that round to nothing one by one add up together."""
    parts = narrow(np.float32([16, 0.75, 0.75]), "float8_e4m3fn").reshape(3, 1)
    total = combine(Operator.SUM, list(parts), "float8_e4m3fn")

    assert [18.0] == widen(total, "float8_e4m3fn").tolist()
