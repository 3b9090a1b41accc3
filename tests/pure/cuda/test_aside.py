"""Calls in place with unequal parts: the kernel reads a copy of its input."""

from __future__ import annotations

import ctypes

import numpy as np
from cuda_fakes import on_ranks, view

from stretto.compiler.lower import lower
from stretto.compiler.plan import Schedule
from stretto.compiler.verify import verify, verify_plan
from stretto.executors import Call
from stretto.executors.cuda.codegen.abi import Kernel
from stretto.executors.cuda.launching.kernels import Loaded
from stretto.executors.cuda.session import CudaSession
from stretto.executors.cuda.words import PARAMS
from stretto.program import algorithms
from stretto.program.collectives import Operator


def test_a_call_aside_reads_a_copy_that_is_its_own(fake):
    """Unequal parts in place: the input is copied, read, and freed, on the stream."""
    program = verify(algorithms.get("all_to_all/one_shot").build(2))
    plan = lower(program, Schedule.parse("push packets staged"), in_place=True)

    def work(group):
        session = CudaSession(group)
        kernel = Kernel(text="any", ranks=(0,), grid=2, threads=160)
        session.load_call = lambda plan, call, **_: Loaded(None, 7, kernel)
        call = Call(dtype="int32", op=Operator.SUM, counts=(1, 5, 3, 2), aside=True)
        launch = session.prepare(verify_plan(plan, program), call)
        room = session.empty((8,), "int32")
        given = np.arange(8, dtype=np.int32) + 10 * group.rank
        view(room).view("i4")[:8] = given
        if group.rank == 0:
            launch(room, room, stream=5)
            session.synchronize(5)
            raw = ctypes.string_at(fake.launches[-1][3], PARAMS.itemsize)
            head = np.frombuffer(raw, PARAMS)[0]
            source, target = int(head["input"][0]), int(head["output"][0])
            count = 6  # what rank 0 sends; what it gets are 4 elements
            copy = np.frombuffer((ctypes.c_int32 * count).from_address(source), "i4")
            assert target == room.pointer != source
            assert np.array_equal(copy, given[:count])
        group.exchange({})
        session.close()

    on_ranks(fake, 2, work)
