"""Fields: what is put there lands in its pieces, or nowhere."""

import numpy as np
import pytest
from tests.pure.hop.ends import join
from tests.pure.hop.test_tcp import until

from stretto.fabric import hop
from stretto.fabric.hop.fields import MOST_FIELDS, PIECE_WORDS, Field, offset_of

FIRST, SIZE = 4096, 1 << 16
pytestmark = pytest.mark.timeout(120)


class Owner:
    """A rank with fields."""

    def __init__(self, rank, lanes=2, many=4):
        self.memory = np.zeros(SIZE, np.uint8)
        self.fields = np.zeros((many, Field.END), np.int64)
        window = hop.Window(
            rank=rank, num_ranks=2, address=self.memory.ctypes.data,
            puts=(FIRST, SIZE), words=(0, FIRST), secret=b"s" * 32, lanes=lanes,
            fields=self.fields.ctypes.data, num_fields=many,
        )  # fmt: skip
        self.way = hop.get("tcp").open_hop(window)
        self.flag = self.memory[:8].view(np.int64)
        self.held = []

    def open(self, index, generation, sizes, **words):
        """Open a field of pieces that lie apart; return their arrays."""
        pieces = [np.zeros(n, np.uint8) for n in sizes]
        begins = np.cumsum([0, *sizes[:-1]])
        listed = np.array(
            [(p.ctypes.data, p.size, b) for p, b in zip(pieces, begins, strict=True)],
            np.int64,
        ).reshape(-1, PIECE_WORDS)
        self.held.append((pieces, listed))
        field = self.fields[index]
        field[:] = 0
        field[Field.COUNT], field[Field.NBYTES] = len(sizes), sum(sizes)
        field[Field.GENERATION] = generation
        for name, value in words.items():
            field[Field[name]] = value
        field[Field.PIECES] = listed.ctypes.data
        return pieces


@pytest.fixture
def pair():
    """Return two connected ranks."""
    ends = [Owner(0), Owner(1)]
    assert ["", ""] == join([end.way for end in ends])
    yield ends
    for end in ends:
        end.way.close()


def put(pair, offset, data, nth, lane=0):
    """Put, and wait until it has landed."""
    a, b = pair
    a.way.put(1, lane, data.ctypes.data, offset, data.size)
    a.way.signal(1, lane, 0, nth, 8, (0, 0, 0))
    until(lambda: b.flag[0] >= nth or b.way.faults(), a.way, b.way)


@pytest.mark.parametrize(
    "sizes", [[8], [1, 2, 3], [5000] * 40, [3, 1 << 20, 17, 1 << 16, 1 << 19]]
)
def test_data_land_in_pieces_wherever_a_put_begins(pair, sizes):
    """Small ones by the buffer, large ones straight, over the ends of pieces."""
    rng = np.random.default_rng(2)
    total = sum(sizes)
    pieces = pair[1].open(1, 5, sizes)
    want = np.zeros(total, np.uint8)
    for nth in range(1, 12):
        begin = int(rng.integers(0, total))
        data = rng.integers(0, 256, int(rng.integers(0, total - begin + 1)), np.uint8)
        want[begin : begin + data.size] = data
        put(pair, offset_of(1, 5) + begin, data, nth, lane=nth % 2 * 0)

        assert np.array_equal(want, np.concatenate(pieces))
    assert pair[1].fields[1, Field.DROPPED] == 0


@pytest.mark.parametrize("nbytes", [100, 300_000])
@pytest.mark.parametrize("why", ["closed", "use", "epoch", "cancel"])
def test_what_comes_too_late_is_read_and_dropped(pair, nbytes, why):
    """And the connection goes on."""
    epoch, cancel = np.array([7], np.int64), np.array([0], np.int64)
    (piece,) = pair[1].open(
        0, 3, [nbytes], EPOCH=epoch.ctypes.data, WANT=7, CANCEL=cancel.ctypes.data
    )
    data = np.full(nbytes, 9, np.uint8)
    put(pair, offset_of(0, 3), data, 1)
    assert piece.all()
    piece[:] = 0
    if why == "closed":
        pair[1].fields[0, Field.PIECES] = 0
    epoch[0] += why == "epoch"
    cancel[0] = why == "cancel"
    put(pair, offset_of(0, 2 if why == "use" else 3), data, 2)

    assert not piece.any()
    assert not pair[1].way.faults()
    if why in ("epoch", "cancel"):
        assert nbytes == pair[1].fields[0, Field.DROPPED]
        assert 2 * nbytes == pair[1].fields[0, Field.LANDED]


def test_who_writes_says_so_only_meanwhile(pair):
    """The mark is gone when the data are there."""
    mark, epoch = np.array([0], np.int64), np.array([7], np.int64)
    pair[1].open(0, 3, [100], MARK=mark.ctypes.data, EPOCH=epoch.ctypes.data, WANT=7)
    put(pair, offset_of(0, 3), np.ones(100, np.uint8), 1)
    assert 0 == mark[0]
    epoch[0] = 8
    put(pair, offset_of(0, 3), np.ones(100, np.uint8), 2)
    assert 0 == mark[0]


@pytest.mark.parametrize(
    "offset", [offset_of(0, 3) + 65, offset_of(4, 3), offset_of(MOST_FIELDS - 1, 0)]
)
def test_what_reaches_outside_of_a_field_ends_the_connection(pair, offset):
    """Nothing is stored."""
    (piece,) = pair[1].open(0, 3, [128])
    put(pair, offset, np.ones(64, np.uint8), 1)

    assert {0: "it sent what makes no sense"} == dict(pair[1].way.faults())
    assert not piece.any()
