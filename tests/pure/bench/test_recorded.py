"""The search on a GPU that is pretended: recorded times, and a clock of our own."""

import json
import math
import types
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.nightly import at_night

from stretto.bench.measuring.loop import Timings
from stretto.bench.tune import job
from stretto.bench.workload.task import BenchTask
from stretto.compiler.plan import Schedule

RECORDED = Path(__file__).with_name("recorded_all_reduce_h200x4.json")
KERNELS_PER_S = 6.0
BUDGET_S = 30.0


class Gpu:
    """What each pin takes: as recorded, or a little more than its nearest sister."""

    def __init__(self):
        self.us, self.seen = {}, {}
        for nbytes, rows in json.loads(RECORDED.read_text()).items():
            for pin, us in rows.items():
                family, *shape = self.place(pin)
                sisters = self.seen.setdefault((int(nbytes), family), {})
                sisters[tuple(shape)] = us

    @staticmethod
    def place(pin):
        name, _, words = pin.partition(" ")
        how = Schedule.parse(words)
        plain = replace(how, blocks=1, threads=512, tile_bytes=1 << 18, depth=4)
        return f"{name} {plain}", how.blocks, how.threads, how.depth

    def time(self, pin, nbytes, simulated_us):
        family, *shape = self.place(pin)
        sisters = self.seen.get((nbytes, family))
        if sisters is None:
            return 1.05 * simulated_us
        return min(us * (1 + 0.05 * far(shape, it)) for it, us in sisters.items())

    def best(self, nbytes):
        return min(min(s.values()) for (n, _), s in self.seen.items() if n == nbytes)


def far(one, other):
    return sum(abs(math.log2(a / b)) for a, b in zip(one, other, strict=True))


class Machine:
    """Stands for the clock, the compiler, the other ranks, and what is measured."""

    def __init__(self, gpu):
        self.gpu, self.now, self.compiled_at = gpu, 5.0, 5.0  # ranks have started
        self.compiled, self.waiting, self.asks = set(), [], []
        self.arch, self.rank, self.num_ranks, self.rebuilt = (9, 0), 0, 1, 0
        self.pools, self._sessions = self, {}
        self.rng = np.random.default_rng(0)

    def monotonic(self):
        return self.now

    def gather(self, value):
        return [value]

    def agree(self, value):
        return value

    def barrier(self):
        pass

    def close(self):
        pass

    def start(self, pins, case):
        fresh = [p for p in dict.fromkeys(pins) if p not in self.compiled]
        self.waiting += [p for p in fresh if p not in self.waiting]

    def wait(self, pins, case, *, at_most_s):
        self.start(pins, case)
        wanted = [p for p in self.waiting if p in pins]
        behind = [p for p in self.waiting if p not in pins]
        self.waiting = [*wanted, *behind]
        while self.waiting:
            done_at = self.compiled_at + 1 / KERNELS_PER_S
            needed = self.waiting[0] in pins and done_at <= self.now + at_most_s
            if not needed and done_at > self.now:
                break
            self.compiled_at = done_at
            self.compiled.add(self.waiting.pop(0))
        ready = [p for p in pins if p in self.compiled]
        self.now = max(self.now, self.compiled_at if wanted else 0.0)
        return ready

    def measure(self, case, pins, others, *, limits, seed):
        """Packets in a ring hang; compiling disturbs some; all else takes its time."""
        found = {}
        for pin in pins:
            if "/ring push packets" in pin:
                self.now += 3.6
                found[pin] = Timings(refused=True, note="CollectiveTimeout")
                continue
            simulated = self.tuner._foreseen(
                pin, self.tuner.question((case.test, case.nbytes))
            )
            us = self.gpu.time(pin, case.nbytes, simulated)
            noise = 1 + 0.01 * self.rng.random((1, limits.batches))
            noise[self.rng.random(noise.shape) < 0.2] *= 1.25
            found[pin] = Timings(us=us * noise)
            self.now += 0.05 + limits.batches * 1.5e-3
        self.asks.append((case.nbytes, limits.batches, self.now))
        return found


@pytest.fixture
def machine(monkeypatch):
    found = Machine(Gpu())
    for name in ("Target", "Precompiler", "Control"):
        monkeypatch.setattr(job, name, lambda *_, **__: found)
    monkeypatch.setattr(job, "time", found)
    monkeypatch.setattr(
        job,
        "faulthandler",
        types.SimpleNamespace(
            dump_traceback_later=lambda *_, **__: None,
            cancel_dump_traceback_later=lambda: None,
        ),
    )
    return found


@pytest.mark.parametrize(
    "sizes",
    [(1 << 16,), at_night((1 << 12, 1 << 16, 1 << 20, 1 << 22))],
    ids=len,
)
def test_from_scratch_the_search_ends_where_years_of_hands_did(
    machine, tmp_path, sizes
):
    """In half a minute, at every size, confirmed in time, while a protocol hangs."""
    task = BenchTask(
        tests=("all_reduce",), sizes=sizes, num_ranks=4, dtype="bfloat16",
        device="cuda", registered=True, mode="graph", budget_s=BUDGET_S,
        options={
            "state": str(tmp_path / "s.json"), "keep": 12, "scratch": True,
            "deadline_s": 3.0, "began": 0.0,
        },
    )  # fmt: skip
    machine.tuner = job.Tuner(machine, task, lambda _: None)

    found = machine.tuner.run()

    confirmed = {n: at for n, batches, at in machine.asks if batches == 30}
    assert set(sizes) == set(confirmed)
    assert max(confirmed.values()) <= BUDGET_S
    for nbytes in sizes:
        one = found["decided"]["all_reduce"][str(nbytes)]
        pin = one["found"] or one["pin"]
        assert machine.gpu.time(pin, nbytes, 0.0) <= 1.02 * machine.gpu.best(nbytes), (
            f"{nbytes}: {pin}"
        )
    assert len(found["wrong"]) <= 3, "a way that only fails is given up"


@pytest.mark.parametrize("test", ["gather", "broadcast"])
def test_where_there_is_little_to_choose_from_all_of_it_is_confirmed(
    machine, tmp_path, test
):
    """Nobody is given up before the last look, and there are neighbours to ask for."""
    task = BenchTask(
        tests=(test,), sizes=(1 << 10, 1 << 16), num_ranks=2, budget_s=BUDGET_S,
        options={"state": str(tmp_path / "s.json"), "keep": 12, "began": 0.0},
    )  # fmt: skip
    machine.tuner = job.Tuner(machine, task, lambda _: None)

    found = machine.tuner.run()

    assert ["1024", "65536"] == list(found["decided"][test])
