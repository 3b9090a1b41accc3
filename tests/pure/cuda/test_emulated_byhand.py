"""Registered kernels on this CPU, a thread each: values, and what a fault says."""

import ctypes
import shutil

import numpy as np
import pytest
from cuda_emulate import aligned
from cuda_emulate_own import built

from stretto.compiler.lower import lower
from stretto.compiler.plan import Schedule
from stretto.compiler.verify import verify, verify_plan
from stretto.executors import Call
from stretto.executors.cuda.codegen import abi
from stretto.executors.cuda.codegen.byhand import hand_kernel
from stretto.executors.cuda.flags.watch import explain
from stretto.executors.cuda.launching.byhand import (
    hand_footprint,
    hand_layout,
    taken_by_hand,
)
from stretto.executors.cuda.words import RECORD
from stretto.program import algorithms, collectives
from stretto.program.collectives import Operator, Shape, storage
from stretto.testing import draw, input_counts, interpret, output_counts

pytestmark = [
    pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++"),
    pytest.mark.usefixtures("one_hop"),
]


class ByHand:
    """All ranks of a registered kernel in one launch."""

    def __init__(self, name, ranks, words, folder, *, dtype, op, count):
        self.n, self.dtype, self.op = ranks, dtype, op
        self.program = algorithms.get(name).build(ranks)
        proved = verify_plan(lower(verify(self.program), Schedule.parse(words)))
        self.plan = proved.value
        kind = collectives.get(self.plan.collective)
        shape = Shape(num_ranks=ranks, split=1, params=self.plan.params)
        self.counts = (count,) * kind.num_parts(shape)
        call = Call(dtype=dtype, op=op, counts=self.counts)
        found = taken_by_hand(self.plan, call)
        assert found is not None
        item = storage(dtype).itemsize
        sizes = kind.symbol_sizes(shape, np.asarray(self.counts), item)
        self.kernel = hand_kernel(found, self.plan, rank=None, dtype=dtype, op=op)
        self.where = hand_layout(self.plan, sizes, call)
        needs = hand_footprint(found, self.plan, call)
        self.stage = [aligned(2 * needs.stage, 0x5A) for _ in range(ranks)]
        self.packets = [aligned(2 * needs.packets) for _ in range(ranks)]
        self.halves = needs.stage, needs.packets
        self.control = [aligned(abi.control_bytes(ranks)) for _ in range(ranks)]
        self.records = [aligned(RECORD.itemsize) for _ in range(ranks)]
        entry = (
            "void once(const Calls calls) { stretto_kernel(calls); }\n"
            'extern "C" void go(Calls* calls, unsigned grid, unsigned threads,'
            " unsigned from) {\n"
            "  launch_ranks(once, calls, 1, grid, threads, 0, from);\n}\n"
        )
        text = self.kernel.text.replace('#line 1 "', "// ")
        self.go = built(text, folder, entry)

    def __call__(self, given, shift=0, *, fingerprints=(7, 7, 7), absent=0):
        """Return every rank's output; the first `absent` ranks do not come."""
        n_out = output_counts(self.program, self.counts)
        item = storage(self.dtype).itemsize
        source = [aligned(g.nbytes + 16)[shift:] for g in given]
        target = [aligned(c * item + 16, 0x77)[shift:] for c in n_out]
        for memory, values in zip(source, given, strict=True):
            memory[: values.nbytes] = values.view(np.uint8)
        fields = {
            "input": source,
            "output": target,
            "stage": self.stage,
            "packets": self.packets,
            "control": self.control,
        }
        addresses = {k: [m.ctypes.data for m in v] for k, v in fields.items()}
        packed = b"".join(
            abi.pack(
                self.kernel,
                self.where,
                {
                    **addresses,
                    "record": self.records[r].ctypes.data,
                    "deadline_ns": 300_000_000 if absent else 60_000_000_000,
                    "fingerprint": fingerprints[r],
                    "stage_half": self.halves[0],
                    "packet_half": self.halves[1],
                },
            ).tobytes()
            for r in range(self.n)
        )
        grid, threads = self.kernel.grid, self.kernel.threads
        self.go(ctypes.c_char_p(packed), grid, threads, absent * grid // self.n)
        for memory, count in zip(target, n_out, strict=True):
            assert (memory[count * item :] == 0x77).all(), "it wrote past the end"
        return [
            t[: c * item].view(storage(self.dtype))
            for t, c in zip(target, n_out, strict=True)
        ]


@pytest.mark.parametrize(
    ("dtype", "op", "count", "shift"),
    [
        ("float32", Operator.AVG, 203, 4),
        ("uint8", Operator.MAX, 301, 1),
    ],
)
def test_the_registered_example_gives_the_programs_bits(
    tmp_path, dtype, op, count, shift
):
    """Launch after launch, any length and alignment; packet memory is left empty."""
    words = "packets blocks=2 threads=32"
    run = ByHand(
        "all_reduce/one_hop", 3, words, tmp_path, dtype=dtype, op=op, count=count
    )
    rng = np.random.default_rng(1)
    for _ in range(3):
        counts = input_counts(run.program, run.counts)
        given = [draw(rng, c, dtype, op) for c in counts]
        want = interpret(run.program, given, dtype=dtype, op=op, counts=run.counts)
        got = run(given, shift)

        for rank in range(3):
            assert want[rank].tobytes() == got[rank].tobytes()
        assert not any(memory.any() for memory in run.packets)


def test_packets_carry_the_word_that_means_nothing(tmp_path):
    """Data that look like an empty place arrive all the same."""
    run = two_ranks(tmp_path)
    given = [np.full(200, 0x7FB52C91, np.int32) for _ in range(2)]
    given[1][::3] = 5
    got = run(given)

    assert [0x7FB52C91] * 200 == got[0].tolist() == got[1].tolist()


def two_ranks(folder):
    words = "packets threads=32"
    how = {"dtype": "int32", "op": Operator.MAX, "count": 200}
    return ByHand("all_reduce/one_hop", 2, words, folder, **how)


def test_ranks_that_call_something_else_are_told_apart(tmp_path):
    """A registered kernel calls the roll like every other."""
    run = two_ranks(tmp_path)
    run([np.ones(200, np.int32)] * 2, fingerprints=(7, 8))
    plans = {7: run.plan, 8: run.plan}
    said = [explain(r.view(RECORD)[0], plans)[1] for r in run.records]
    whole = [t for t in said if "entering: ranks [" in t and "called something" in t]

    assert whole, f"the first to find it says so, the other may be told: {said}"
    assert all(t.startswith(f"rank {r}, {run.plan.name}") for r, t in enumerate(said))


def test_who_does_not_enter_a_registered_kernel_is_named(tmp_path):
    """The others leave at the deadline, and say whom they missed in which call."""
    run = two_ranks(tmp_path)
    run([np.ones(200, np.int32)] * 2)
    run([np.ones(200, np.int32)] * 2, absent=1)
    record = run.records[1].view(RECORD)[0]
    waiting, text = explain(record, {7: run.plan})

    assert [0] == waiting
    assert text.startswith("rank 1, all_reduce/one_hop")
    assert "ranks [0] did not enter the call" in text
    assert 1 == record["epoch"], "the second launch"
