"""Rings: the last calls are there, whole, for the process itself and for outsiders."""

import importlib
import os
import random
import shutil
import subprocess
import sys
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.held import held, left_since
from tests.nightly import examples

from stretto.errors import SharedMemoryError, TraceError
from stretto.trace import (
    EXPLAINED,
    STATES,
    STEP_KINDS,
    CallKind,
    Comm,
    read_all,
    record,
    snapshot,
    snapshot_of_pid,
)
from stretto.trace.collector import take
from stretto.trace.process import _Process
from stretto.trace.ringfile import RingFile
from stretto.trace.rings import RingWord

WORLD = Comm(name="world", members=(0, 1, 2))
KIND = CallKind(collective="all_reduce", nbytes=4096, dtype="float32", text="a call")


@pytest.fixture
def file(tmp_path):
    """Return a file of rings, of rank 1."""
    made = RingFile({"rank": 1, "num_ranks": 3, "host": "a"}, tmp_path)
    yield made
    made.close()


def made_calls(ring, count):
    kind = ring.define(KIND)
    for _ in range(count):
        ring.end(ring.begin(kind))


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.integers(0, 40), max_size=8))
def test_what_is_taken_is_all_or_said_to_be_lost(counts):
    """Each call is taken once, in order; those written over are counted."""
    file = RingFile({"rank": 1})
    ring = file.open(WORLD, 1, 16)
    total, taken, lost = 0, [], 0
    for count in counts:
        made_calls(ring, count)
        total += count
        new = take(ring)
        taken += new.calls["seq"].tolist()
        lost += new.dropped_calls
        assert total == len(taken) + lost
        assert count <= 15 or new.dropped_calls
    assert sorted(set(taken)) == taken
    assert not total or taken[-1] == total
    file.close()


def test_a_call_that_runs_is_taken_when_it_has_ended(file):
    """Or the last time, as one that runs."""
    ring = file.open(WORLD, 1, 16)
    made_calls(ring, 2)
    at = ring.begin(0)
    assert [1, 2] == take(ring).calls["seq"].tolist()
    assert [] == take(ring).calls["seq"].tolist()
    ring.end(at)
    assert [3] == take(ring).calls["seq"].tolist()
    ring.begin(0)
    last = take(ring, final=True).calls
    assert [(4, 0, 0)] == last[["seq", "state", "end"]].tolist()


def test_a_call_remembers_when_it_was_asked_for(file):
    """The next one, and only that."""
    ring = file.open(WORLD, 1, 16)
    ring.enqueued(77)
    made_calls(ring, 2)
    one, two = take(ring).calls

    assert 77 == one["enqueue"] < one["start"] <= one["end"]
    assert two["enqueue"] == two["start"]


def test_compiled_code_writes_what_python_writes(file):
    """Numba's writer and ours agree on every word but the times."""
    records = pytest.importorskip("stretto.fabric.jit.records")
    ring = file.open(WORLD, 1, 16)
    number = ring.define(KIND)
    quick, enqueued = records.noter(ring.address, number), STATES.index("enqueued")
    for turn in range(20):
        ring.enqueued(turn // 3)
        ring.begin(number, 5, enqueued) if turn % 2 else quick(5)
    calls = take(ring).calls

    assert list(range(6, 21)) == calls["seq"].tolist()
    facts = calls[["rank", "kind", "state", "stream"]].tolist()
    assert {(1, number, 3, 5)} == set(facts)
    asked = calls["enqueue"].tolist()
    assert [t // 3 for t in range(5, 20)] == asked
    quick(5)
    (last,) = take(ring).calls
    assert last["enqueue"] > 10**6
    for wrong in ((), (5, 5), ("5",)):
        with pytest.raises(TypeError):
            quick(*wrong)
    places = {
        RingWord.MASK: records.MASK,
        RingWord.RECORDS: records.RECORDS,
        RingWord.ENQUEUE: records.ASKED,
        RingWord.CLOCK: records.SCRATCH,
    }
    assert all(8 * word == at for word, at in places.items())
    assert STATES.index("enqueued") == records.ENQUEUED


def test_steps_are_explained_by_the_kind_of_their_call(file):
    """A number becomes kind, step, peer, and bytes of its tile."""
    ring = file.open(WORLD, 1, 16)
    table = np.zeros(4, EXPLAINED)
    table[3] = STEP_KINDS.index("put"), 7, 2, 100, 60
    number = ring.define(KIND, lambda: table)
    ring.record_steps(8)
    for tile in (0, 1, 2):
        ring.steps[tile] = 5, number, 3, tile, 10, 2, 30, 1
    ring.words[RingWord.STEP_HEAD] = 3
    steps = take(ring).steps

    assert [60, 40, 0] == steps["nbytes"].tolist()
    assert {(1, 5, 7, 2, 1)} == set(
        map(tuple, steps[["rank", "seq", "step", "peer", "lane"]].tolist())
    )
    assert [0, 1, 2] == steps["tile"].tolist()


def test_an_outsider_reads_what_is_there(file):
    """Calls, what they are, and what the last one waits for."""
    ring = file.open(WORLD, 1, 16)
    made_calls(ring, 40)
    ring.begin(0)
    wait = {"rank": 1, "comm": 0, "seq": 41, "peers": [2], "text": "wait r2.0 n=1"}
    ring.say_waits([wait])
    seen = snapshot(file.path)

    assert list(range(27, 42)) == seen.calls["seq"].tolist()
    assert 0 == seen.calls["state"][-1]
    assert (KIND,) == seen.kinds
    assert (WORLD,) == seen.comms
    assert ("wait r2.0 n=1", (2,)) == (seen.waits[0].text, seen.waits[0].peers)
    ring.fail()
    made_calls(ring, 1)
    assert () == snapshot(file.path).waits, "the next call is another"


def test_an_outsider_never_sees_half_a_record(file):
    """While another thread writes as fast as it can."""
    ring = file.open(WORLD, 1, 16)
    kind, stop = ring.define(KIND), threading.Event()

    def write():
        while not stop.is_set():
            ring.end(ring.begin(kind, stream=int(ring.words[0]) + 1))

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(200):
            calls = snapshot(file.path).calls
            assert (np.diff(calls["seq"]) == 1).all()
            assert (calls["stream"] == calls["seq"]).all()
    finally:
        stop.set()
        thread.join()


def test_rings_of_closed_communicators_are_used_again(file):
    """A program that splits for ever needs no more memory for ever."""
    sizes = []
    for i in range(60):
        ring = file.open(Comm(name=f"world/{i}.0", members=(0, 1)), 1, 64)
        made_calls(ring, 3)
        assert 3 == ring.words[RingWord.HEAD]
        file.close_ring(ring)
        sizes.append(len(snapshot(file.path).comms))
    assert max(sizes) < 20
    assert "world/59.0" in {c.name for c in snapshot(file.path).comms}


@settings(max_examples=examples(150), deadline=None)
@given(st.randoms(use_true_random=False))
def test_hostile_rings_give_one_clear_line(tmp_path_factory, rng: random.Random):
    """Bytes changed anywhere, or the end missing: read, or refused in one line."""
    folder = tmp_path_factory.mktemp("x")
    file = RingFile({"rank": 1, "host": "a"}, folder)
    ring = file.open(WORLD, 1, 16)
    made_calls(ring, 20)
    ring.say_waits([{"rank": 1, "comm": 0, "seq": 20}])
    data = bytearray(file.path.read_bytes()[: 1 << 19])
    file.close()
    interesting = [n for n in range(0, 1 << 19, 8) if any(data[n : n + 8])]
    for _ in range(rng.randint(1, 6)):
        at = rng.choice(interesting) + rng.randint(0, 7)
        data[at] = rng.randint(0, 255)
    if rng.random() < 0.3:
        del data[rng.randint(0, len(data)) :]
    (folder / "y.rings").write_bytes(data)
    try:
        snapshot(folder / "y.rings")
    except TraceError as e:
        said = str(e)
    else:
        said = "y.rings"
    assert "y.rings" in said
    assert "\n" not in said


def test_a_process_without_rings_is_told_apart():
    """From one that is not there; both say what to do."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=-1) as child:
        with pytest.raises(TraceError, match="records: it has none yet"):
            snapshot_of_pid(child.pid)
        child.communicate(b"\n")
    with pytest.raises(TraceError, match="no such process"):
        snapshot_of_pid(child.pid)


def test_a_process_writes_all_its_calls_to_a_folder(tmp_path, monkeypatch):
    """More than a ring holds, of several communicators, and the rings are gone."""
    monkeypatch.setenv("STRETTO_TRACE", str(tmp_path / "run"))
    process = _Process()

    class Owner:
        pass

    one, two = Owner(), Owner()
    first = process.open(one, WORLD, 1, few=False)
    second = process.open(two, Comm(name="world/0.1", members=(1, 2)), 1, few=True)
    for _ in range(3):
        made_calls(first, 500)
        made_calls(second, 7)
        process.collect()
    process.close_ring(two)
    second = None
    process.shut()
    recording = read_all(tmp_path / "run")

    names = [path.name for path in (tmp_path / "run").iterdir()]
    assert [f"00001-{os.getpid()}.trace"] == names
    assert [1500, 21] == np.bincount(recording.calls["comm"]).tolist()
    assert 4096 == recording.calls["nbytes"][0]
    assert () == recording.dropped


def test_what_a_killed_process_left_is_read(tmp_path, monkeypatch):
    """Its file up to the last chunk, and from its rings what is not in that."""
    monkeypatch.setenv("STRETTO_TRACE", str(tmp_path / "run"))
    process = _Process()

    class Owner:
        pass

    owner = Owner()
    ring = process.open(owner, WORLD, 1, few=False)
    process._stop.set()
    process._thread.join()
    made_calls(ring, 30)
    process.collect()
    made_calls(ring, 12)
    ring.begin(0)
    shutil.copytree(tmp_path / "run", tmp_path / "left")
    process.shut()
    recording = read_all(tmp_path / "left")

    assert list(range(1, 44)) == recording.calls["seq"].tolist()
    assert 0 == recording.calls["state"][-1]


@pytest.mark.parametrize("meanwhile", ["snapshot", "read"])
def test_a_process_that_ends_while_it_is_read_is_there(
    tmp_path, monkeypatch, meanwhile
):
    """Its rings go when its file is whole: each call is in what was read, once."""
    monkeypatch.setenv("STRETTO_TRACE", str(tmp_path / "run"))
    process = _Process()
    process._stop.set()
    process._thread.join()
    owner = SimpleOwner()
    ring = process.open(owner, WORLD, 1, few=False)
    made_calls(ring, 30)
    process.collect()
    made_calls(ring, 12)
    merging = importlib.import_module("stretto.trace.merge")
    look = getattr(merging, meanwhile)

    def end_and_look(path):
        process.shut()
        return look(path)

    monkeypatch.setattr(merging, meanwhile, end_and_look)
    recording = read_all(tmp_path / "run")

    assert [] == list((tmp_path / "run").glob("*.rings"))
    assert list(range(1, 43)) == recording.calls["seq"].tolist()


class SimpleOwner:
    """What stands for a communicator; it can be referred to weakly."""


def test_who_was_killed_before_its_first_word_costs_nobody_a_recording(
    tmp_path, monkeypatch
):
    """An empty file, rings without a head: the others' calls are there."""
    monkeypatch.setenv("STRETTO_TRACE", str(tmp_path / "run"))
    process, owner = _Process(), SimpleOwner()
    made_calls(process.open(owner, WORLD, 1, few=False), 5)
    process.shut()
    (tmp_path / "run" / "00000-7.trace").touch()
    (tmp_path / "run" / "7.rings").touch()
    (tmp_path / "run" / "8.rings").write_bytes(bytes(1 << 16))

    assert 5 == read_all(tmp_path / "run").num_events


def test_a_block_is_recorded_in_memory():
    """What came before and after it is not in it."""
    with record(steps=True) as seen:
        pass
    assert 0 == seen.recording.num_events


def test_a_process_that_has_closed_all_holds_nothing():
    """No descriptor stays, neither the file's nor the one that a mapping keeps."""

    class Owner:
        """Stands for a communicator."""

    process, owners = _Process(), [Owner(), Owner()]
    process._folder = None
    before = held()
    for _ in range(3):
        for owner in owners:
            process.open(owner, WORLD, 1, few=False)
        assert held().more_than(before)
        for owner in owners:
            process.close_ring(owner)

    assert [] == left_since(before)


@pytest.mark.parametrize("lacks", ["addresses", "disk", "disk later"])
def test_a_rank_without_room_for_its_file_has_no_ring(monkeypatch, tmp_path, lacks):
    """It goes on; only nobody can look at it. Nothing of the attempt is left."""
    process, owners = _Process(), [threading.Event() for _ in range(3)]
    process._folder = tmp_path if lacks.startswith("disk") else None
    if lacks == "disk later":
        assert process.open(owners[0], WORLD, 1, few=False) is not None
    before = held()

    def full(*args, **options):
        raise OSError(28, "No space left on device")

    def none(*args, **options):
        raise SharedMemoryError("no addresses")

    if lacks == "addresses":
        monkeypatch.setattr("stretto.trace.ringfile.Mapping", none)
    else:
        monkeypatch.setattr(os, "posix_fallocate", full)

    assert process.open(owners[1], WORLD, 1, few=False) is None
    assert [] == left_since(before)
    assert (lacks == "disk later") == any(tmp_path.glob("*.rings"))
    monkeypatch.undo()
    assert process.open(owners[2], WORLD, 1, few=False) is not None
    for owner in owners:
        process.close_ring(owner)
