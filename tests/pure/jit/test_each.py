"""A function of several signatures: each is compiled and kept, and none is added."""

import numpy as np
import pytest

from stretto.fabric.jit.atomics import compiled


def doubled(row, out):
    for i in range(row.shape[0]):
        out[i] = row[i] + row[i]


@pytest.mark.parametrize("nth", ["first", "again"])
def test_each_signature_has_its_own_loop(nth):
    """What is read from the disk, the second time, is told apart, too."""
    kinds = "float32", "uint16"
    made = compiled(*(f"void({k}[::1],{k}[::1])" for k in kinds), lean=True)(doubled)

    for kind, value in zip(kinds, (1.5, 20_000), strict=True):
        row = np.full(3, value, kind)
        out = np.zeros(3, kind)
        made(row, out)
        assert [row[0] + row[0]] * 3 == out.tolist()
    with pytest.raises(TypeError, match="No matching definition"):
        made(np.zeros(3, np.complex64), np.zeros(3, np.complex64))
