"""A budget bounds the whole search; there is always a result, what is cut is said."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.nightly import at_night

from stretto import topology
from stretto.cli import main
from stretto.compiler.verify import verify
from stretto.errors import CallError
from stretto.synth import Budget, clock, from_machine, solvers, synthesize


def net(name):
    """Return a machine's network."""
    return from_machine(topology.load(name))


@pytest.mark.parametrize(
    ("collective", "machine"),
    [
        at_night("all_gather", "mi250x2"),
        at_night("reduce_scatter", "mi250x2"),
        ("all_reduce", "ndv2x2"),
        ("all_to_all", "mi250x"),
        at_night("broadcast", "mi250x2"),
    ],
)
def test_a_spent_budget_leaves_the_first_way(collective, machine):
    """Without time only one way is tried; it is proved, and the rest is named."""
    start = time.monotonic()
    found = synthesize(collective, net(machine), 10**9, budget=Budget.within(0))
    took = time.monotonic() - start

    assert verify(found.program("it"))
    assert found.cut
    assert f"Left out: {found.cut[0]}." in found.text("it")
    assert took < 20


def test_a_budget_bounds_every_way_of_a_search(monkeypatch):
    """Packing this machine's trees exactly alone takes half a minute."""
    monkeypatch.setattr(clock, "now", time.process_time)  # tests share the computer
    start = time.process_time()
    found = synthesize("all_gather", net("mi250x2"), 10**9, budget=Budget.within(3))
    took = time.process_time() - start

    assert found.cut
    assert found.gap < 0.5
    assert took < 8


def test_steps_and_rounds_end_with_the_budget(monkeypatch):
    """Many models that find nothing, one after another, ask the clock between them."""
    monkeypatch.setattr(clock, "now", time.process_time)
    network = net("mi250x").group(range(8), relays=False)
    start = time.process_time()
    found = synthesize("all_reduce", network, 65536, budget=Budget.within(1))

    assert found.gap < 0.2
    assert time.process_time() - start < 4


@pytest.mark.slow
def test_trees_are_packed_wherever_they_can_be():
    """Also for more than 32 ranks, when it is asked for."""
    network = net("torus3x11")
    found = synthesize(
        "all_gather", network, 10**9, trees=1, splits=(1,), budget=Budget.within(60)
    )

    assert "trees k=1" in found.schedule.generator
    assert verify(found.program("it"))


def test_what_was_not_cut_is_the_same_with_any_budget():
    """Only solvers and the clock know of the budget; here neither has a say."""
    texts = set()
    for seconds in (60, 90):
        found = synthesize(
            "all_gather",
            net("h200x4"),
            10**6,
            splits=(1,),
            budget=Budget.within(seconds),
        )
        texts.add(found.text("it").split('"""')[2])
        assert not found.cut

    assert 1 == len(texts)


def test_progress_says_how_far_it_is():
    """Each trial knows its gap, and that of the best is the result's."""
    seen = []
    found = synthesize(
        "all_gather",
        net("ndv2x2"),
        10**6,
        splits=(1, 2),
        budget=Budget(seconds=0),
        progress=seen.append,
    )

    assert all(found.bound_us == t.bound_us for t in seen)
    assert found.gap == seen[-1].gap < seen[0].gap


def test_the_command_says_what_was_left_out(capsys):
    """One line for each, under the result."""
    words = ("synth", "all_gather", "--machine", "ndv2x2", "--size", "1M")

    assert 0 == main([*words, "--budget", "0"])
    assert "left out, the budget of 0 s was spent: " in capsys.readouterr().out


def test_the_command_says_which_of_two_times_decided(capsys, tmp_path):
    """Where operations cost something it is the simulator's, with a gap of its own."""
    file = tmp_path / "found.py"
    words = ["synth", "all_gather", "--size", "1M", "--budget", "0", "-o", str(file)]

    assert 0 == main([*words, "--machine", "h200x4"])
    note = re.search(r"runs_us decided: .* ([\d.]+%) above the bound; time_us and gap",
                     capsys.readouterr().out)  # fmt: skip
    assert note is not None
    assert f"This decided; it is {note[1]} above the bound." in file.read_text()
    assert 0 == main([*words, "--machine", "ndv2"])
    assert "decided" not in capsys.readouterr().out + file.read_text()


_INTERRUPTED = """
import os, signal, threading
signal.signal(signal.SIGINT, signal.default_int_handler)  # it may have been ignored
from stretto import topology
from stretto.synth import Budget, from_machine, synthesize

def soon(trial):
    if not asked.is_set():
        asked.set()
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()

asked = threading.Event()
network = from_machine(topology.load("mi250x2"))
found = synthesize(
    "all_gather", network, 65536, budget=Budget.within(60), progress=soon
)
print(found.interrupted, bool(found.cut), found.us < 10**6)
"""

_SOLVING = """
import os, signal, threading
signal.signal(signal.SIGINT, signal.default_int_handler)  # it may have been ignored
from stretto import topology
from stretto.synth import Budget, Demand, bound, from_machine
from stretto.synth.exact.joint import solve_joint
from stretto.synth.network.symmetry import trivial

network = from_machine(topology.load("dgx1"))
demand = Demand(collective="all_gather", network=network, nbytes=65536, split=4)
limit = bound("all_gather", network)
threading.Timer(1.5, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    solve_joint(demand, trivial(network), limit, budget=Budget(seconds=600, whole=600))
except KeyboardInterrupt:
    print("interrupted")
"""


_IMPORTING = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # it may have been ignored
from stretto.synth import solvers

class Interrupts:
    def find_spec(name, path, target=None):
        if name.startswith("ortools"):
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Interrupts)
try:
    solvers.cp_model()
except KeyboardInterrupt:
    print("interrupted", "ortools.sat.python.cp_model" in sys.modules)
"""


@pytest.mark.parametrize(
    ("script", "printed"),
    [
        (_INTERRUPTED, "True True True"),
        (_SOLVING, "interrupted"),
        (_IMPORTING, "interrupted True"),
    ],
)
def test_an_interrupted_search_ends_with_the_best_so_far(script, printed):
    """Wherever Ctrl-C comes, also while a solver is imported, or takes it itself."""
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=90
    )

    assert not ran.stderr
    assert printed == ran.stdout.strip()


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
def test_a_budget_is_a_time(seconds):
    """Neither below 0 nor endless by mistake."""
    with pytest.raises(CallError, match="want 0 or more seconds"):
        Budget(seconds=seconds)


class Solver:
    """Ends when it is told to, as CP-SAT does, and not before."""

    def __init__(self):
        self.parameters, self.stopped = SimpleNamespace(), threading.Event()

    def stop_search(self):
        self.stopped.set()

    def solve(self, model, watch):
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
        ctypes.CDLL(None).usleep(900_000)  # as in a solver, Python runs no handler


def test_ctrl_c_ends_whichever_solver_runs_and_is_raised():
    """None is asked but by the way that hears of it, and hands it on."""
    solver = Solver()
    before = signal.set_wakeup_fd(-1)
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            solvers.solved(solver, None)
    finally:
        signal.signal(signal.SIGINT, handler)
    home = Path(solvers.__file__).parent
    asked = [p.name for p in home.rglob("*.py") if "solver.solve(" in p.read_text()]

    assert solver.stopped.is_set()
    assert -1 == before == signal.set_wakeup_fd(-1)
    assert not solver.parameters.catch_sigint_signal
    assert ["solvers.py"] == asked
