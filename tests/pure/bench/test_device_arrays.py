"""Memory of other libraries, looked at from the host: on CPU tensors that play GPU."""

import numpy as np
import pytest

from stretto.bench.workload.cases import Check, case_of

torch = pytest.importorskip("torch", reason="tensors are PyTorch's")


@pytest.fixture
def wrap(monkeypatch):
    """Wrap a CPU tensor as if it lay on a GPU."""
    from stretto.bench.peers._arrays import GpuArrays

    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    return lambda tensor, dtype: GpuArrays.wrap(torch, tensor, tensor, dtype)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "bool", "float64"])
def test_what_is_put_in_comes_out(wrap, dtype):
    """Bit for bit, in the storage type that the oracle compares."""
    case = case_of("all_gather", 4096, 2, dtype=dtype, op="max")
    check = Check.fresh(case, 0, seed=1)
    buffer = wrap(torch.zeros(check.x.size, dtype=getattr(torch, dtype)), dtype)

    buffer.write(check.x)

    assert np.array_equal(check.x, buffer.read())
    assert buffer.read().dtype == check.x.dtype


def test_poison_is_no_result(wrap):
    """An output that nobody writes cannot be right."""
    check = Check.fresh(case_of("all_reduce", 256, 2, dtype="bfloat16"), 0, seed=1)
    buffer = wrap(torch.zeros(128, dtype=torch.bfloat16), "bfloat16")
    buffer.write(check.want)

    buffer.poison(check.want)

    assert check.wrong(buffer.read(), "bfloat16")


def test_nothing_can_be_put_into_nothing(wrap):
    """Ranks without an output have an empty one."""
    buffer = wrap(torch.zeros(0), "float32")

    buffer.write(np.zeros(0, np.float32))

    assert 0 == buffer.read().size


def test_a_part_of_a_pool_is_written_alone(wrap):
    """What lies beside it stays."""
    pool = torch.zeros(16, dtype=torch.bfloat16)

    wrap(pool[4:8], "bfloat16").write(np.full(4, 0x3F80, np.uint16))

    assert [0.0] * 4 + [1.0] * 4 + [0.0] * 8 == pool.tolist()
