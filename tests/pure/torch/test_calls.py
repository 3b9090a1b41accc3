"""c10d's arguments become calls of a communicator that takes plain tensors only."""

import pytest

torch = pytest.importorskip("torch")

from stretto.errors import CallError  # noqa: E402
from stretto.program.collectives import DTYPES  # noqa: E402
from stretto.torch import calls, tensors  # noqa: E402


class Echo:
    """A communicator of two ranks, the other of which does and has the same.

    It is as strict as one on a GPU: contiguous memory, of types that stretto knows.
    """

    num_ranks = 2

    def __init__(self, rank=0):
        self.rank = rank
        self.said = []

    def _take(self, verb, *tensors):
        for x in tensors:
            if not torch.is_tensor(x):
                continue
            known = str(x.dtype).removeprefix("torch.") in DTYPES
            if not x.is_contiguous() or x.is_conj() or x.is_neg() or not known:
                raise CallError(f"{verb}: strided or unknown")
        self.said.append(verb)

    def all_reduce(self, x, op):
        self._take("all_reduce", x)
        x.copy_(self._combined(x, op))

    def _combined(self, x, op):
        if op == "avg":
            return x.clone()
        return x + x if op == "sum" else x.clone()

    def reduce(self, x, op, *, root, out=None):
        self._take("reduce", x, out)
        if self.rank == root:
            (x if out is None else out).copy_(self._combined(x, op))

    def broadcast(self, x, *, root):
        self._take("broadcast", x)
        if self.rank != root:
            x.fill_(1)

    def all_gather(self, x, *, out=None):
        import numpy as np

        self._take("all_gather", x, out)
        if out is None:
            return np.stack([x, x])
        if out.numel() != 2 * x.numel():
            raise CallError("all_gather: sizes")
        out.reshape(-1).copy_(torch.cat([x.reshape(-1)] * 2))
        return out

    def all_gather_v(self, x, counts, *, out):
        self._take("all_gather_v", x, out)
        assert sum(counts) == out.numel()
        parts = [x.reshape(-1).repeat(9)[:count] for count in counts]
        out.copy_(torch.cat(parts))

    def reduce_scatter(self, x, op, *, out):
        self._take("reduce_scatter", x, out)
        if not x.dim() or x.shape[0] % 2 or out.numel() * 2 != x.numel():
            raise CallError("reduce_scatter: sizes")
        mine = x.reshape(2, -1)[self.rank]
        out.copy_(self._combined(mine, op).reshape(out.shape))

    def reduce_scatter_v(self, x, counts, op, *, out):
        self._take("reduce_scatter_v", x, out)
        out.copy_(self._combined(x.split(counts)[self.rank], op).reshape(out.shape))

    def gather(self, x, *, root, out=None):
        self._take("gather", x, out)
        if out is not None:
            out.reshape(-1).copy_(torch.cat([x.reshape(-1)] * 2))

    def scatter(self, x, *, root, out):
        self._take("scatter", x, out)
        if x is not None:
            out.copy_(x.reshape(2, -1)[self.rank].reshape(out.shape))

    def all_to_all(self, x, *, out):
        self._take("all_to_all", x, out)
        mine = x.reshape(2, -1)[self.rank]
        out.reshape(2, -1).copy_(torch.stack([mine, mine]))


STRIDED = torch.arange(24.0).reshape(4, 6)
ZEROS = torch.zeros(2)


def test_a_strided_tensor_is_copied_in_and_out():
    """The columns of a view are summed, and those beside it stay."""
    base = STRIDED.clone()
    calls.all_reduce(Echo(), base[:, 1:3], "sum")
    assert torch.equal(STRIDED[:, 1:3] * 2, base[:, 1:3])
    assert torch.equal(STRIDED[:, 3:], base[:, 3:])


@pytest.mark.parametrize("rank", [0, 1])
def test_only_the_roots_tensor_is_written_by_reduce(rank):
    """At every other rank the tensor stays as it was."""
    base = STRIDED.clone()
    calls.reduce(Echo(rank), base[:, ::2], 1, "sum")
    assert torch.equal(STRIDED[:, ::2] * (1 + (rank == 1)), base[:, ::2])


def test_a_conjugated_tensor_gives_what_it_shows():
    """What is gathered is the conjugate, not the memory below it."""
    x = torch.tensor([1 + 2j, 3 - 1j])
    out = torch.zeros(4, dtype=torch.complex64)
    calls.all_gather_single(Echo(), out, x.conj())
    assert torch.equal(torch.cat([x.conj().resolve_conj()] * 2), out)


@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_types_that_numpy_lacks_are_moved_as_bytes():
    """They are gathered bit by bit; combining them is refused."""
    x = torch.tensor([1 + 2j, -3j]).to(torch.complex32)
    out = torch.zeros(4, dtype=torch.complex32)
    calls.all_gather_single(Echo(), out, x)
    assert torch.equal(torch.cat([x, x]).view(torch.int16), out.view(torch.int16))
    with pytest.raises(CallError):
        calls.all_reduce(Echo(), x, "sum")


def test_a_factor_leaves_the_input_as_it_is():
    """The product is made in a copy."""
    x, out = torch.arange(4.0), torch.zeros(2)
    calls.reduce_scatter_single(Echo(1), out, x, 3.0)
    assert [12.0, 18.0] == out.tolist()
    assert [0.0, 1.0, 2.0, 3.0] == x.tolist()


def test_parts_of_one_block_are_not_copied():
    """Parts in order in one memory are a view of it; all others are no block."""
    block = torch.zeros(2, 3)
    said = tensors.block(list(block))
    assert said.data_ptr() == block.data_ptr()
    assert 6 == said.numel()
    assert tensors.block([block[1], block[0]]) is None
    assert tensors.block([torch.zeros(3), torch.zeros(3)]) is None
    assert tensors.block([block[:, 0], block[:, 1]]) is None


@pytest.mark.parametrize("apart", [False, True])
def test_lists_get_each_ranks_part(apart):
    """It does not matter whether the tensors of a list lie apart or in one block."""
    outs = (
        [torch.zeros(2, 3), torch.zeros(2, 3)] if apart else list(torch.zeros(2, 2, 3))
    )
    x = torch.arange(6.0).reshape(2, 3)
    calls.all_gather(Echo(), outs, x)
    assert all(torch.equal(x, out) for out in outs)
    calls.gather(Echo(), outs, x + 1, 0)
    assert all(torch.equal(x + 1, out) for out in outs)
    out = torch.zeros(2, 3)
    calls.reduce_scatter(Echo(1), out, [x, x + 5], "sum")
    assert torch.equal((x + 5) * 2, out)
    calls.scatter(Echo(1), out, [x, x + 7], 1)
    assert torch.equal(x + 7, out)


def test_unequal_lists_go_by_counts():
    """Parts of different sizes are gathered and combined, each in its place."""
    comm = Echo()
    outs = [torch.zeros(2), torch.zeros(3)]
    calls.all_gather(comm, outs, torch.tensor([4.0, 5.0]))
    assert [[4.0, 5.0], [4.0, 5.0, 4.0]] == [o.tolist() for o in outs]
    out = torch.zeros(3)
    calls.reduce_scatter(Echo(1), out, [torch.ones(2), torch.arange(3.0)], "sum")
    assert [0.0, 2.0, 4.0] == out.tolist()
    assert ["all_gather_v"] == comm.said


def test_a_first_axis_that_ranks_do_not_divide_is_flattened():
    """Elements are divided then, not rows."""
    out = torch.zeros(3)
    calls.reduce_scatter_single(Echo(1), out, torch.arange(6.0).reshape(3, 2), "sum")
    assert [6.0, 8.0, 10.0] == out.tolist()


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda c: calls.all_gather(c, [torch.zeros(2)], torch.zeros(2)), "1 tensors"),
        (
            lambda c: calls.all_gather(
                c, [torch.zeros(2), torch.zeros(2)], torch.zeros(3)
            ),
            "has place for 2",
        ),
        (
            lambda c: calls.all_gather_single(
                c, torch.zeros(4, dtype=torch.int32), torch.zeros(2).t()[::2]
            ),
            "one type and one device",
        ),
        (
            lambda c: calls.gather(
                c, [torch.zeros(2), torch.zeros(3)], torch.zeros(2), 0
            ),
            "tensor of rank 1 has 3 elements",
        ),
        (
            lambda c: calls.all_to_all_single(
                c, torch.zeros(3), torch.zeros(3), (), ()
            ),
            "not divisible by 2 ranks",
        ),
        (
            lambda c: calls.all_to_all_single(
                c, torch.zeros(3), torch.zeros(3), [1, 1], [1, 2]
            ),
            r"output_split_sizes=\[1, 1\] for 3 rows",
        ),
        (
            lambda c: calls.all_to_all_single(
                c, torch.zeros(3), torch.zeros(3), [1, 2], [1, 2]
            ),
            "gives rank 1 2 elements, and that expects 1",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_numbers(call, text):
    """The error says how much came and how much is wanted."""
    with pytest.raises(CallError, match=text):
        call(Echo())
