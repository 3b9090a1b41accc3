"""Of many ranks one chooses and proves; the others read what concerns them."""

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from tests.nightly import at_night

from stretto import caches
from stretto.compiler.plan import Schedule, pack
from stretto.compiler.verify import verify_plan
from stretto.errors import PlanError
from stretto.program import algorithms
from stretto.program.collectives import names as collectives
from stretto.program.ir import Verified
from stretto.program.lang import algorithm
from stretto.runtime.choice import Question, Selector, kept, plans

PACKETS = Schedule(protocol="packets")
EIGHT_EACH = {n: tuple(rank // 8 for rank in range(n)) for n in (16, 64, 128)}


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """A cache of the test's own."""
    monkeypatch.setenv("STRETTO_CACHE_DIR", str(tmp_path))
    forget()
    yield tmp_path
    forget()


def forget():
    """Be a process that has proved nothing."""
    plans._proved.cache_clear()
    plans.proved_program.cache_clear()


@pytest.fixture
def made(monkeypatch):
    """What is lowered and proved from here on."""
    found, prove = [], plans._prove

    def noted(*args):
        found.append(args)
        return prove(*args)

    monkeypatch.setattr(plans, "_prove", noted)
    return found


def chosen(num_ranks, collective="all_reduce", hosts=(), nbytes=4096, memory="staged"):
    """Return the plan that a new process runs."""
    forget()
    rooted = collective in ("broadcast", "reduce", "gather", "scatter")
    params = (("root", 0),) if rooted else ()
    asked = Question(
        executor="cpu", collective=collective, num_ranks=num_ranks, nbytes=nbytes,
        memory=memory, params=params, hosts=hosts,
    )  # fmt: skip
    found = Selector("cpu").choose(asked)
    return plans.proved_plan(
        found.algorithm, num_ranks, params, found.schedule, True, hosts
    )


def cpu_s(work):
    """Return the seconds of this process that something takes, at the least."""
    least = float("inf")
    for _ in range(3):
        start = time.process_time()
        work()
        least = min(least, time.process_time() - start)
    return least


CASES = [
    ("all_reduce", 16, False, 1 << 20),
    ("all_reduce", 16, True, 4096),
    ("all_to_all", 16, False, 4096),
    ("barrier", 16, False, 8),
    at_night("reduce", 16, False, 4096),
    ("all_reduce", 64, False, 4096),
    at_night("all_reduce", 128, False, 1 << 20),
    at_night("all_reduce", 128, True, 4096),
]


@pytest.mark.parametrize(("collective", "n", "over_hosts", "nbytes"), CASES)
def test_the_second_rank_proves_nothing(made, collective, n, over_hosts, nbytes):
    """It gets the same plan; of many ranks the first proves what is run alone."""
    hosts = EIGHT_EACH[n] if over_hosts else ()
    first = chosen(n, collective, hosts, nbytes)
    many = len(made)
    second = chosen(n, collective, hosts, nbytes)

    assert many == len(made)
    assert first.value.digest == second.value.digest
    assert first.value == second.value
    if n > 16:
        assert many == 1


def test_all_others_of_128_ranks_together_take_a_second(made):
    """Of their processors, to choose and to have their part of a proved plan."""

    def other():
        plan = chosen(128, nbytes=1 << 20).value
        assert plan.ranks[77]
        assert plan.digest

    chosen(128, nbytes=1 << 20)
    assert len(made) == 1
    kept._sources.cache_clear()
    assert 127 * cpu_s(other) < 1.0


@pytest.mark.parametrize(
    ("n", "limit_s"), [(32, 2.0), at_night(64, 2.0), at_night(128, 5.0)]
)
def test_the_dearest_kind_of_call_is_planned_in_time(n, limit_s):
    """By the first rank of all: 5 s of 128 ranks, with what everybody has to do."""
    start = time.process_time()
    chosen(n, "all_to_all")

    assert time.process_time() - start < limit_s


def test_every_collective_of_many_ranks_proves_one_candidate(made):
    """Whatever is chosen: nobody lowers and proves what is not run."""
    for collective in collectives():
        if collective in ("permute", "barrier"):
            continue
        for hosts in ((), tuple(rank // 8 for rank in range(17))):
            made.clear()
            chosen(17, collective, hosts)

            assert len(made) == 1, (collective, hosts)


def test_that_there_is_no_such_plan_is_kept_with_the_reason(made):
    """A leaf has no output by which to tell where others' lie."""
    args = (algorithms.get("gather/flat"), 12, (("root", 0),))
    how = Schedule(direction="push", memory="zero_copy")
    said = []
    for _ in range(2):
        forget()
        with pytest.raises(PlanError) as told:
            plans.proved_plan(*args, how, True)
        said.append(str(told.value))

    assert said[0] == said[1]
    assert len(made) == 1


def own(move):
    """Return an algorithm of a user's, under a name of the catalogue's."""

    @algorithm("all_reduce/ring")
    def ring(ranks):
        for r in ranks:
            for chunk in range(len(ranks)):
                r.output[chunk] = move([q.input[chunk] for q in ranks])

    return ring


def summed(parts):
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def test_what_users_write_is_known_by_what_it_says_not_by_its_name(made):
    """Neither the catalogue's plan nor that of another program is taken for it."""
    how = Schedule(tile_bytes=1 << 20)
    one, other = own(summed), own(lambda parts: summed(parts[::-1]))
    shipped = algorithms.get("all_reduce/ring")
    digests = set()
    for each in (shipped, one, other, shipped, one, other):
        forget()
        digests.add(plans.proved_plan(each, 8, (), how, True).value.digest)

    assert len(digests) == 3
    assert len(made) == 3


def stored(place):
    (path,) = (place / "proved").iterdir()
    return path


@pytest.mark.parametrize("harm", ["cut", "other", "noise", "writable", "another"])
def test_what_is_not_ours_and_whole_is_proved_anew(place, made, harm):
    """With a warning; and the file is another one afterwards."""
    ring = algorithms.get("all_reduce/ring"), 8, ()
    want = plans.proved_plan(*ring, PACKETS, True).value
    path = stored(place)
    if harm == "cut":
        path.write_bytes(path.read_bytes()[:-3])
    elif harm == "other":
        caches.store(path, caches.load(path).replace(b"proved\n", b"proven\n"))
    elif harm == "noise":
        caches.store(path, b"proved\n" + os.urandom(300))
    elif harm == "writable":
        path.chmod(0o666)
    else:  # a proof of something else, moved here
        strange = plans._prove(plans._Wanted(ring[0], 9, (), PACKETS, True, ()))
        caches.store(path, b"proved\n" + pack(strange.value))
    forget()
    made.clear()
    with pytest.warns(RuntimeWarning, match="made anew"):
        got = plans.proved_plan(*ring, PACKETS, True).value

    assert want == got
    assert len(made) == 1


def test_a_proof_is_of_the_code_as_it_is(monkeypatch, made):
    """What a file of the library says may decide what is proved."""
    ring = algorithms.get("all_reduce/ring"), 8, ()
    plans.proved_plan(*ring, PACKETS, True)
    forget()
    monkeypatch.setattr(kept, "_sources", lambda: "other code")
    plans.proved_plan(*ring, PACKETS, True)

    assert len(made) == 2


def test_every_file_that_decides_is_looked_at(tmp_path, monkeypatch):
    """One that is written, added or taken away is noticed, however deep it lies."""
    for room in kept._ROOMS:
        (tmp_path / room / "inside").mkdir(parents=True)
        (tmp_path / room / "a.py").write_text("a = 1")
        (tmp_path / room / "inside" / "b.toml").write_text("b = 1")
    monkeypatch.setattr(
        kept, "__file__", str(tmp_path / "runtime" / "choice" / "kept.py")
    )
    seen = {kept._sources.__wrapped__()}
    for nth, path in enumerate(sorted(tmp_path.rglob("*.*"))):
        now = path.stat()
        path.write_text(path.read_text().replace("1", "2"))
        os.utime(path, ns=(now.st_atime_ns, now.st_mtime_ns))
        seen.add(kept._sources.__wrapped__())
        assert len(seen) == nth + 2, path


def test_what_is_kept_is_what_is_proved_now():
    """Read back, it passes the proof that it is said to have passed."""
    for collective in ("all_reduce", "all_to_all", "reduce_scatter"):
        chosen(12, collective)
        again = chosen(12, collective)

        assert isinstance(again, Verified)
        verify_plan(again.value)


PROCESS = """
import sys
from stretto.runtime.choice import Question, Selector, plans
made, prove = [], plans._prove
plans._prove = lambda *args: made.append(1) or prove(*args)
found = Selector("cpu").choose(
    Question(executor="cpu", collective="all_reduce", num_ranks=64, nbytes=1 << 20)
)
print(len(made), found)
"""


def test_processes_that_start_together_prove_once(place):
    """The others wait for the one, and choose as it does."""
    source = Path(__file__).parents[3] / "src"
    some = [
        subprocess.Popen(
            [sys.executable, "-c", PROCESS], stdout=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": str(source)},
        )
        for _ in range(3)
    ]  # fmt: skip
    said = [one.communicate(timeout=120)[0].split(maxsplit=1) for one in some]

    assert sum(int(many) for many, _ in said) == 1
    assert len({what for _, what in said}) == 1
    assert np.all([path.suffix != ".lock" for path in (place / "proved").iterdir()])
