"""Counts on the device: kernels that read their sizes in the call."""

import ctypes
import shutil
import time

import cuda_emulate as emulate
import numpy as np
import pytest
from cuda_fakes import generated, on_ranks
from tests.nightly import at_night
from tests.stand_ins import Elements as Tensor

from stretto.compiler.lower import lower
from stretto.compiler.plan import Schedule
from stretto.compiler.verify import verify, verify_plan
from stretto.errors import CallError, PlanError
from stretto.executors import Call
from stretto.executors.cuda.codegen import abi
from stretto.executors.cuda.codegen.abi import Kernel
from stretto.executors.cuda.codegen.compile import build
from stretto.executors.cuda.codegen.counts import COUNTED_TABLE
from stretto.executors.cuda.codegen.generate import kernel_of
from stretto.executors.cuda.flags.watch import explain
from stretto.executors.cuda.launching.kernels import Loaded
from stretto.executors.cuda.session import CudaSession
from stretto.executors.cuda.words import KINDS, PARAMS, RECORD
from stretto.program import algorithms
from stretto.program.collectives import Operator

MOST = 200


def proved(name, ranks, words, **params):
    """Return a proved plan."""
    program = algorithms.get(name).build(ranks, **params)
    return verify_plan(lower(verify(program), Schedule.parse(words)))


class Counted:
    """All ranks of a plan in one launch on this CPU, with counts in memory."""

    def __init__(self, monkeypatch, folder, name, ranks, words):
        program = algorithms.get(name).build(ranks)
        plan = proved(name, ranks, words).closed().value
        monkeypatch.setattr(
            emulate, "kernel_of", lambda p, **how: kernel_of(p, counted=True, **how)
        )
        self.run = emulate.Emulated(
            program, plan, folder, dtype="int32", op=Operator.SUM, counts=MOST
        )
        self.aligned = emulate.aligned

    def __call__(self, counts, given, room):
        """Run on counts; return every rank's output of `room` and what it is told."""
        run, n = self.run, self.run.plan.num_ranks
        matrix = np.ascontiguousarray(counts, np.int64)
        source = [self.aligned(g.nbytes + 16) for g in given]
        for memory, values in zip(source, given, strict=True):
            memory[: values.nbytes] = values.view(np.uint8)
        target = [self.aligned(4 * room, 0x77) for _ in range(n)]
        told = [np.full(matrix.size, -1, np.int64) for _ in range(n)]
        memories = {
            "input": source,
            "output": target,
            "stage": run.stage,
            "packets": run.packets,
            "control": run.control,
        }
        packed = b""
        for r in range(n):
            fields = {k: [m.ctypes.data for m in v] for k, v in memories.items()}
            extra = [matrix.ctypes.data, matrix.size, MOST, given[r].size, room]
            extra.append(told[r].ctypes.data)
            packed += abi.pack(
                run.kernel,
                run.where,
                {
                    **fields,
                    "record": run.records[r].ctypes.data,
                    "deadline_ns": 20 * 10**9,
                    "fingerprint": 7,
                    "stage_half": run.half,
                    "packet_half": run.packet_half,
                },
                extra,
            ).tobytes()
        run.library.go(ctypes.c_char_p(packed), 0)
        return [t.view(np.int32) for t in target], told


def drawn(rng, n, most):
    """Return counts of every rank for every rank, some nothing and some the most."""
    counts = rng.integers(0, most + 1, (n, n))
    counts[rng.random((n, n)) < 0.3] = 0
    counts[0, -1] = most
    given = [rng.integers(-99, 99, c.sum() + 5, dtype=np.int32) for c in counts]
    return counts, given


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")
@pytest.mark.parametrize(
    "words",
    [
        "push packets staged threads=32 blocks=2 tile_bytes=256",
        at_night("pull bulk staged threads=32 tile_bytes=128"),
    ],
)
def test_counts_may_differ_in_every_launch(monkeypatch, tmp_path, words):
    """Parts lie one after the other; what is received is told; nothing else is hit."""
    call = Counted(monkeypatch, tmp_path, "all_to_all/one_shot", 3, words)
    rng = np.random.default_rng(1)
    for most in (MOST, 1, 0, 40, MOST):
        counts, given = drawn(rng, 3, most)
        outputs, told = call(counts, given, 3 * MOST)
        starts = np.concatenate([np.zeros((3, 1), int), counts.cumsum(1)], axis=1)
        for r in range(3):
            due = [given[q][starts[q, r] : starts[q, r + 1]] for q in range(3)]
            end = counts[:, r].sum()
            assert np.concatenate(due).tolist() == outputs[r][:end].tolist()
            assert (outputs[r][end:] == 0x77777777).all()
            assert [*counts[:, r], -1] == told[r][:4].tolist()
        epochs = {run.view(np.uint64)[64] for run in call.run.control}
        assert 1 == len(epochs)


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")
def test_parts_of_an_all_gather_may_differ_in_every_launch(monkeypatch, tmp_path):
    """One count a rank, known to all; a ring passes parts of any size on."""
    words = "push packets staged threads=32 tile_bytes=256"
    call = Counted(monkeypatch, tmp_path, "all_gather/ring", 3, words)
    rng = np.random.default_rng(5)
    for counts in ([5, 0, MOST], [0, 0, 0], [MOST, 17, 1]):
        given = [rng.integers(-99, 99, c + 3, dtype=np.int32) for c in counts]
        outputs, told = call(np.array(counts), given, 3 * MOST)
        due = np.concatenate([g[:c] for g, c in zip(given, counts, strict=True)])
        for r in range(3):
            assert due.tolist() == outputs[r][: due.size].tolist()
            assert (outputs[r][due.size :] == 0x77777777).all()
            assert counts == told[r].tolist()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")
def test_parts_of_a_reduce_scatter_may_differ_in_every_launch(monkeypatch, tmp_path):
    """Sums of as much of everybody's array as a rank is to get."""
    words = "push packets staged threads=32 blocks=2 tile_bytes=256"
    call = Counted(monkeypatch, tmp_path, "reduce_scatter/one_shot", 3, words)
    rng = np.random.default_rng(6)
    for counts in ([5, 0, MOST], [0, 0, 0], [MOST, 17, 1]):
        size, starts = sum(counts), np.cumsum([0, *counts])
        given = [rng.integers(-99, 99, size + 3, dtype=np.int32) for _ in range(3)]
        outputs, _ = call(np.array(counts), given, MOST)
        total = sum(given)
        for r in range(3):
            due = total[starts[r] : starts[r + 1]]
            assert due.tolist() == outputs[r][: due.size].tolist()
            assert (outputs[r][due.size :] == 0x77777777).all()


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")
def test_a_count_that_is_too_large_is_told_and_moves_nothing(monkeypatch, tmp_path):
    """Everybody finds it, says whose it is, and leaves the outputs alone."""
    words = "push packets staged threads=32"
    call = Counted(monkeypatch, tmp_path, "all_to_all/one_shot", 2, words)
    counts = np.array([[1, 2], [MOST + 1, 4]])
    given = [np.arange(2 * MOST + 9, dtype=np.int32)] * 2
    outputs, _ = call(counts, given, 2 * MOST)

    assert {0x77777777} == set(np.concatenate(outputs).tolist())
    told = [explain(call.run.record(r), {7: call.run.plan}) for r in range(2)]
    assert told[0] == told[1]
    waiting, text = told[0]
    assert [] == waiting
    assert f"rank 1 has {MOST + 1} elements for rank 0" in text
    assert f"want 0 to {MOST}" in text


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")
def test_an_output_that_is_too_small_is_told(monkeypatch, tmp_path):
    """Each count may be allowed and their sum too much. That only its owner knows."""
    words = "push packets staged threads=32"
    call = Counted(monkeypatch, tmp_path, "all_to_all/one_shot", 2, words)
    given = [np.arange(200, dtype=np.int32)] * 2
    outputs, _ = call(np.array([[100, 1], [100, 1]]), given, 150)

    record = call.run.record(0)
    assert "counts" == KINDS[record["kind"]]
    assert (200, 150) == (record["got"], record["want"])
    text = explain(record, {7: call.run.plan})[1]
    assert "rank 0 is given 200 elements" in text
    assert "its out has 150" in text
    assert "what other ranks' outputs hold is undefined" in text
    assert {0x77777777} == set(outputs[0].tolist())
    other = explain(call.run.record(1), {7: call.run.plan})[1]
    assert "rank 0 gave up, as there are more elements than it has room for" in other


@pytest.mark.parametrize("protocol", ["packets", at_night("bulk")])
def test_kernels_with_counts_on_the_device_compile(protocol):
    """For the GPU, with no more registers than a block of theirs has."""
    plan = proved("all_to_all/one_shot", 4, f"push {protocol} staged threads=512").value
    kernel = generated(plan, rank=2, dtype="bfloat16", counted=True)
    image, _ = build(kernel, arch=(9, 0))

    assert image
    assert COUNTED_TABLE == kernel.table


def test_an_algorithm_that_divides_counts_is_refused():
    """Chunks of a count are not told apart by the counts alone."""
    plan = proved("all_reduce/two_shot", 2, "push packets staged").value

    with pytest.raises(PlanError, match="split=1"):
        generated(plan, rank=0, dtype="int32", counted=True)


def counted_launch(session, words="push packets staged"):
    """Return a prepared launch without a compiler."""
    kernel = Kernel(text="any", ranks=(0,), grid=1, threads=64)
    counting = Kernel(
        text="any", ranks=(0,), grid=1, threads=64,
        table=COUNTED_TABLE,
    )  # fmt: skip
    session.load_call = lambda plan, call, share=None, counted=None: (
        Loaded(None, 6, counting) if counted else Loaded(None, 5, kernel)
    )
    return session.prepare_counted(
        proved("all_to_all/one_shot", 2, words),
        proved("all_gather/one_shot", 2, "push packets staged"),
        Call(dtype="float32", counts=(64,) * 4),
    )


def test_a_launch_gathers_counts_and_then_moves(fake):
    """Two kernels; the second is told where the counts and the arrays are."""

    def work(group):
        session = CudaSession(group)
        launch = counted_launch(session)
        x, out = Tensor(4096, 100, 4), Tensor(8192, 128, 4)
        counts, told = Tensor(64, 2, 8), Tensor(128, 2, 8)
        group.exchange({})
        if group.rank == 0:
            launch(x, out, stream=5, extra=(counts, told))
            launch(x, out, stream=5, extra=(counts, told))
            functions = [f for f, *_ in fake.launches]
            assert [5, 6, 5, 6] == functions
            assert fake.launches[1][3] == fake.launches[3][3]
            raw = ctypes.string_at(
                fake.launches[1][3], PARAMS.itemsize + 8 * len(COUNTED_TABLE)
            )
            head = np.frombuffer(raw[: PARAMS.itemsize], PARAMS)[0]
            words = np.frombuffer(raw[PARAMS.itemsize :], np.int64).tolist()
            assert (4096, 8192) == (head["input"][0], head["output"][0])
            matrix = session.slab.base + session.flags.of(5).region.counts
            assert [matrix, 4, 64, 100, 128, 128] == words
            gathered = ctypes.string_at(fake.launches[0][3], PARAMS.itemsize)
            assert matrix == np.frombuffer(gathered, PARAMS)[0]["output"][0]
            with pytest.raises(CallError, match="want 2 numbers"):
                launch(x, out, stream=5, extra=(counts, Tensor(128, 1, 8)))
        group.exchange({})
        session.close()

    on_ranks(fake, 2, work)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("push bulk zero_copy", "peers touch the output"),
        ("pull bulk zero_copy", "peers touch the input"),
        ("push engine zero_copy", "peers touch the output"),
        ("push engine staged", "copy engines take sizes from here"),
    ],
)
def test_arrays_that_peers_would_touch_are_refused(fake, words, why):
    """Where a peer's part begins depends on counts that only its GPU knows."""

    def work(group):
        session = CudaSession(group)
        with pytest.raises(PlanError, match=f"{why}.*want 'staged'"):
            counted_launch(session, words)
        session.close()

    on_ranks(fake, 2, work)


def recorded(session, **fields):
    """Leave a record as a kernel does."""
    record = np.zeros(1, RECORD)
    for name, value in fields.items():
        record[name] = value
    record["state"] = 2
    ctypes.memmove(session.watch.record, record.tobytes(), RECORD.itemsize)


def test_a_record_of_counts_is_a_call_error(fake):
    """It is raised at the next call, in words: whose count, and what it may be."""

    def work(group):
        session = CudaSession(group)
        recorded(session, kind=4, peer=1, step=1, got=300, want=200)
        with pytest.raises(CallError, match=r"rank 1 has 300 elements.*want 0 to 200"):
            session.check()
        session.close()

    on_ranks(fake, 1, work)


def test_a_negative_count_is_told_as_it_is(fake):
    """Numbers of records are words of 64 bits."""

    def work(group):
        session = CudaSession(group)
        recorded(session, kind=4, peer=0, step=0, got=2**64 - 3, want=200)
        with pytest.raises(CallError, match="rank 0 has -3 elements"):
            session.check()
        session.close()

    on_ranks(fake, 1, work)


def test_whoever_is_told_lets_the_teller_speak(fake):
    """Rank 1 reads first that rank 0 gave up; both raise what rank 0 says, later."""

    def work(group):
        session = CudaSession(group)
        group.exchange({})
        if group.rank == 1:
            claim = 1 << 63 | 4 << 48  # rank 0 gave up: counts
            recorded(session, kind=3, rank=1, peer=0, step=2, got=claim)
        else:
            time.sleep(0.2)
            recorded(session, kind=4, peer=0, step=-2, got=300, want=200)
        with pytest.raises(CallError, match="rank 0 is given 300 elements"):
            session.check()
        group.exchange({})
        session.close()

    on_ranks(fake, 2, work)
