"""A CPU tensor is seen where it lies; what has no memory is refused; nothing stays."""

import numpy as np
import pytest

from stretto.arrays import host_view
from stretto.errors import CallError

torch = pytest.importorskip("torch")

SEEN = {
    "plain": lambda: torch.arange(6.0).reshape(2, 3),
    "scalar": lambda: torch.tensor(2.0),
    "empty": lambda: torch.empty(0, 3),
    "bool": lambda: torch.tensor([True, False]),
    "complex": lambda: torch.tensor([1 + 2j]),
    "strided": lambda: torch.arange(24.0).reshape(4, 6)[1:, ::2].t(),
    "expanded": lambda: torch.ones(1).expand(3),
    "parameter": lambda: torch.nn.Parameter(torch.ones(3)),
}


def resized_to_nothing():
    tensor = torch.ones(3)
    tensor.untyped_storage().resize_(0)
    return tensor


def fake():
    from torch._subclasses import FakeTensorMode

    return FakeTensorMode().from_tensor(torch.ones(3))


REFUSED = {
    "conjugated": lambda: torch.ones(3, dtype=torch.complex64).conj(),
    "negated": lambda: torch.ones(3, dtype=torch.complex64).conj().imag,
    "sparse": lambda: torch.eye(3).to_sparse(),
    "zeros that take no memory": lambda: torch._efficientzerotensor((3,)),
    "functional": lambda: torch._to_functional_tensor(torch.ones(3)),
    "resized to nothing": resized_to_nothing,
    "fake": fake,
}


@pytest.mark.parametrize("make", SEEN.values(), ids=SEEN)
def test_a_tensor_is_seen_where_it_lies(make):
    """The view has its elements and strides, and writes to it reach the tensor."""
    tensor = make()

    view, name = host_view(tensor, "x")

    plain = tensor.detach().clone().numpy()
    assert str(tensor.dtype) == f"torch.{name}"
    assert np.array_equal(plain, view)
    view[...] = 0
    assert not tensor.any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e5m2])
def test_types_that_numpy_lacks_are_seen_as_bits(dtype):
    """The bits are the tensor's; the name says what they are."""
    tensor = torch.arange(4.0).to(dtype)
    bits = torch.uint16 if dtype.itemsize == 2 else torch.uint8

    view, name = host_view(tensor, "x")

    assert f"torch.{name}" == str(dtype)
    assert tensor.view(bits).tolist() == view.tolist()


@pytest.mark.parametrize("make", SEEN.values(), ids=SEEN)
def test_looking_at_a_tensor_changes_nothing(make):
    """Its storage can be resized as before, and nothing holds it afterwards."""
    tensor = make()
    storage = tensor.untyped_storage()
    users = torch._C._storage_Use_Count(storage._cdata)
    before = storage.resizable(), tensor._version, tensor.requires_grad

    view, _ = host_view(tensor, "x")

    assert before == (storage.resizable(), tensor._version, tensor.requires_grad)
    del view
    assert users == torch._C._storage_Use_Count(storage._cdata)


@pytest.mark.parametrize("make", REFUSED.values(), ids=REFUSED)
def test_what_has_no_memory_of_its_own_is_refused(make):
    """An error says so, before anything reads what is not there."""
    tensor = make()

    with pytest.raises(CallError, match="x: a"):
        host_view(tensor, "x")


@pytest.mark.parametrize("kind", ["f4", "f8", "i2", "u8", "c8"])
def test_bytes_in_another_order_are_refused_where_they_are_read_as_they_lie(kind):
    """Only who says that it copies them gets them."""
    given = np.ones(3, np.dtype(kind).newbyteorder(">"))
    with pytest.raises(CallError, match="another order"):
        host_view(given, "x")
    seen, _ = host_view(given, "x", swapped=True)
    assert seen is given
