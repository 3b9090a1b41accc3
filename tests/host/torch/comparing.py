"""What the checks of torch.distributed share: inputs, comparisons, expected errors."""

from __future__ import annotations

import re
from contextlib import contextmanager

import torch

INTS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
FLOATS = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
COMPLEX = (torch.complex64, torch.complex128)
MOVED = (*INTS, *FLOATS, *COMPLEX, torch.bool, torch.float8_e4m3fn, torch.float8_e5m2)


def of(rank, n, shape, dtype, *, salt=0):
    """Return a rank's tensor: small whole numbers, different everywhere."""
    count = 1
    for size in shape:
        count *= size
    values = (torch.arange(count) * 3 + rank * 5 + salt) % 7 + 1
    if dtype is torch.bool:
        return (values % 2 == 0).reshape(shape)
    if dtype.is_complex:
        return (
            torch.complex(values.double(), values.double() - 3).to(dtype).reshape(shape)
        )
    return values.to(torch.float32).to(dtype).reshape(shape)


@contextmanager
def raises(kind, match=""):
    """Want an error with these words; the checks run without pytest, too."""
    said = None
    try:
        yield
    except kind as e:
        said = str(e)
    assert said is not None, f"nothing was raised; want {kind}"
    assert re.search(match, said), said


def same(want, got):
    """Raise unless two tensors have the same type, shape and elements."""
    assert want.dtype == got.dtype
    assert want.shape == got.shape
    if want.dtype.itemsize == 1 and want.dtype.is_floating_point:
        want, got = want.view(torch.uint8), got.view(torch.uint8)
    assert torch.equal(want, got), f"want {want}, got {got}"


def both(call, *args, **options):
    """Call in both ways: at once, and started and waited for."""
    call(*args, **options)
    yield
    work = call(*args, async_op=True, **options)
    assert work.wait() in (True, None)
    if torch.cuda.is_initialized():  # there `wait` holds the stream, not the host
        torch.cuda.synchronize()
    if hasattr(work, "is_completed"):
        assert work.is_completed()
    yield
