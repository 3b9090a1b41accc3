"""Dispatch and combine kernels on this CPU, a thread each, against the definition."""

import shutil

import numpy as np
import pytest
from cuda_emulate_experts import ENTRY, SHARED, geometry, random_case
from cuda_emulate_own import Handles, build

from stretto.executors.cuda.codegen.abi import Kernel
from stretto.executors.cuda.codegen.compile import build as compile_text
from stretto.executors.cuda.codegen.compile import usage
from stretto.executors.cuda.flags.watch import explain
from stretto.experts.texts import (
    BLOCK_WORDS,
    CombineCall,
    DispatchCall,
    PeerPlaces,
    has_few,
    text_of,
)

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")

BLOCKS, THREADS = 2, 64


class Emulated:
    """All ranks' memory, and the two kernels."""

    def __init__(self, g, folder, deadline_s=60):
        self.g, self.n = g, g.num_ranks
        text = SHARED + text_of(g, BLOCKS, THREADS)
        self.library = build(text, folder, ENTRY)
        memory = self.memory = PeerPlaces.of(g, BLOCKS)
        how = {"blocks": BLOCKS, "deadline_s": deadline_s}
        self.there = Handles(self.n, memory.nbytes, **how)
        self.back = Handles(self.n, memory.back_nbytes, **how)
        self.blocks = [np.zeros(BLOCKS * BLOCK_WORDS, np.uint64) for _ in range(self.n)]
        slots = self.n * g.max_tokens
        lines = slots * min(g.top_k, g.num_experts) + g.num_experts * g.align
        self.out = [
            {
                "slots": np.full((g.max_tokens, self.n), 77, np.int32),
                "rows": np.full(lines * g.row_bytes, 0xA5, np.uint8),
                "scales": np.full(lines * (g.scale_bytes // 4), 7, np.float32),
                "out_ids": np.full((slots, g.top_k), 77, np.int32),
                "out_weights": np.full((slots, g.top_k), np.nan, np.float32),
                "out_places": np.full((slots, g.top_k), 77, np.int32),
                "out_tokens": np.full(slots, 77, np.int32),
                "counts": np.full(g.num_experts, 77, np.int64),
                "starts": np.full(g.num_experts + 1, 77, np.int64),
                "sources": np.full(self.n, 77, np.int64),
            }
            for _ in range(self.n)
        ]

    def dispatch(self, case, half=0, absent=0):
        """Run all ranks' dispatches."""
        raw = [np.ascontiguousarray(x).view(np.uint8) for x in case.xs]
        ids = [np.ascontiguousarray(i, np.int64) for i in case.ids]
        weights = [np.ascontiguousarray(w) for w in case.weights]
        calls = (DispatchCall * self.n)()
        for r, call in enumerate(calls):
            for name, array in self.out[r].items():
                setattr(call, name, array.ctypes.data)
            call.channels = self.there.memory[r].ctypes.data
            call.epochs = self.there.epochs(r)
            call.x, call.ids = raw[r].ctypes.data, ids[r].ctypes.data
            call.weights = weights[r].ctypes.data
            call.blocks = self.blocks[r].ctypes.data
            call.tokens, call.rank = len(case.xs[r]), r
            call.locals, call.half = self.g.num_local(r), half
        self.library.dispatch(calls, self.n, BLOCKS, THREADS, absent)

    def rows(self, rank, half=0):
        """Return lines of rows, and of scales, as a rank sees them."""
        g, m = self.g, self.memory
        rows, scales = self.out[rank]["rows"], self.out[rank]["scales"]
        if g.layout == "rank" and not has_few(g):
            start = half * m.half
            whole = self.there.buffers[rank][start : start + m.half]
            slots = self.n * g.max_tokens
            rows = whole[m.at["rows"] :][: slots * g.row_bytes]
            scales = whole[m.at["scales"] :][: slots * g.scale_bytes]
            scales = scales.view(np.float32)
        return rows.reshape(-1, g.row_bytes), scales.reshape(
            -1, max(1, g.scale_bytes // 4)
        )

    def combine(self, case, made):
        """Run all ranks' combines of rows, and return the tokens of each."""
        raw = [np.ascontiguousarray(m).view(np.uint8) for m in made]
        ids = [np.ascontiguousarray(i, np.int64) for i in case.ids]
        weights = [np.ascontiguousarray(w) for w in case.weights]
        out = [np.zeros(x.shape, x.dtype) for x in case.xs]
        calls = (CombineCall * self.n)()
        for r, call in enumerate(calls):
            have = self.out[r]
            call.channels = self.back.memory[r].ctypes.data
            call.epochs = self.back.epochs(r)
            call.rows, call.out = raw[r].ctypes.data, out[r].ctypes.data
            call.sources, call.ids = (
                have["sources"].ctypes.data,
                have["out_ids"].ctypes.data,
            )
            call.weights = have["out_weights"].ctypes.data
            call.places = have["out_places"].ctypes.data
            call.tokens_of = have["out_tokens"].ctypes.data
            call.slots = have["slots"].ctypes.data
            call.own_ids, call.own_weights = ids[r].ctypes.data, weights[r].ctypes.data
            call.dispatches = self.there.epochs(r)
            call.blocks = self.blocks[r].ctypes.data
            call.tokens, call.rank = len(case.xs[r]), r
        self.library.combine(calls, self.n, BLOCKS, THREADS, 0)
        return out


def check_dispatch(run, case, half):
    """Compare what every rank has with the definition."""
    g = run.g
    for r in range(run.n):
        rows, scales = case.dispatched(r)
        real = [i for i, one in enumerate(case.lines(r)) if one is not None]
        if g.layout == "expert":
            real = list(range(len(rows)))
        got, got_scales = run.rows(r, half)
        assert np.array_equal(rows.view(np.uint8)[real], got[real]), r
        if scales is not None:
            assert np.array_equal(scales[real], got_scales[real]), r
        arrivals = case.arrivals(r)
        at = [s * g.max_tokens + n for s, n in numbered(arrivals)]
        at = at if g.layout == "rank" else list(range(len(arrivals)))
        assert case.local_ids(r) == run.out[r]["out_ids"][at].tolist()
        assert [t for _, t in arrivals] == run.out[r]["out_tokens"][at].tolist()
        counts = [len(one) for one in case.expert_rows(r)]
        assert counts == run.out[r]["counts"][: len(counts)].tolist()


def numbered(arrivals):
    """Return each row's rank and its number among those of that rank."""
    seen = {}
    for s, _ in arrivals:
        yield s, seen.setdefault(s, 0)
        seen[s] += 1


def made_rows(case, rng, r):
    lines = max(1, len(case.lines(r)))
    kind = case.xs[0].dtype
    return rng.standard_normal((lines, case.xs[0].shape[1])).astype(kind)


NAMES = ("expert", "order_k", "token", "rank", "large")
LATE = ("order_k", "token", "large")
KINDS = [
    {"layout": "expert", "align": 4, "quantise": "fp8_128", "dtype": "bfloat16"},
    {"layout": "expert", "order": "k", "placement": [1, 0, 1, 1, 0]},
    {"layout": "token", "dtype": "float16", "hidden": 264},
    {"layout": "rank", "quantise": "fp8_128_pow2"},
    {"layout": "expert", "num_experts": 70, "top_k": 9, "hidden": 640,
     "max_tokens": 40, "dtype": "bfloat16"},
]  # fmt: skip


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, id=name, marks=pytest.mark.slow if name in LATE else [])
        for name, kind in zip(NAMES, KINDS, strict=True)
    ],
)
@pytest.mark.parametrize("few", [True, False], ids=["few", "many"])
def test_kernels_give_the_definition_bit_for_bit(tmp_path, kind, few, monkeypatch):
    """Several calls, one after the other, with other ids and numbers of tokens."""
    monkeypatch.setattr("stretto.experts.texts.MOST_FEW", 1 << 30 if few else 0)
    g = geometry(2, **kind)
    run, rng = Emulated(g, tmp_path), np.random.default_rng(4)
    most = g.max_tokens
    for turn, tokens in enumerate([(most, 3), (0, 9), (5, 0), (1, most - 1)]):
        case = random_case(g, rng, tokens)
        if turn == 1:  # as routers choose: no expert twice
            case.ids[1][:] = rng.random((9, g.num_experts)).argsort(1)[:, : g.top_k]
        half = 0 if turn < 2 else turn % 2  # the same one twice: as graphs do
        run.dispatch(case, half)
        check_dispatch(run, case, half)
        if turn == 1:
            continue
        made = [made_rows(case, rng, r) for r in range(2)]
        got = run.combine(case, made)
        for r in range(2):
            want = case.combined(r, made, g.order)
            assert want.tobytes() == got[r].tobytes(), (turn, r)


@pytest.mark.parametrize(
    "times", [3, pytest.param(1000, marks=pytest.mark.slow)], ids=["", "often"]
)
@pytest.mark.parametrize("few", [True, False], ids=["few", "many"])
def test_an_id_that_is_no_expert_is_told_on_every_rank(
    tmp_path, times, few, monkeypatch
):
    """Whose it is, where, and what it was; everybody leaves.

    Also the threads that wait for something else: whoever hears first tells why.
    """
    monkeypatch.setattr("stretto.experts.texts.MOST_FEW", 1 << 30 if few else 0)
    g = geometry(2)
    for _ in range(times):
        run, rng = Emulated(g, tmp_path), np.random.default_rng(4)
        case = random_case(g, rng, (4, 6))
        case.ids[1][5, 2] = 5
        run.dispatch(case)

        for rank in range(2):
            waiting, text = explain(run.there.record(rank), {})
            assert "rank 1: dispatch: choice 17 is 5; want experts 0 to 4" in text
            assert [] == waiting


def test_a_rank_that_does_not_come_is_named(tmp_path):
    """At the deadline, by who waits."""
    g = geometry(2)
    run = Emulated(g, tmp_path, deadline_s=0.05)
    case = random_case(g, np.random.default_rng(4), (4, 6))
    run.dispatch(case, absent=1 << 1)
    waiting, text = explain(run.there.record(0), {})

    assert [1] == waiting
    assert "rank 0, channel to rank 1, step 1: waited for a packet" in text


@pytest.mark.parametrize("kind", [0, pytest.param(1, marks=pytest.mark.slow),
                                  pytest.param(3, marks=pytest.mark.slow)])  # fmt: skip
def test_kernels_of_real_sizes_compile_and_fit(kind):
    """For the compiler's own GPU: without a warning, and with registers to spare."""
    large = {"num_experts": 256, "top_k": 8, "hidden": 7168, "max_tokens": 4096}
    g = geometry(2, **{**KINDS[kind], **large, "placement": None})
    kernel = Kernel(
        text=text_of(g, 32, 512), symbol="stretto_dispatch", ranks=(0,), grid=32,
        threads=512,
    )  # fmt: skip
    _, log = compile_text(kernel, arch=(9, 0))

    assert usage(log).registers <= 128
