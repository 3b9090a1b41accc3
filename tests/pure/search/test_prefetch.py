"""Fetching ahead and evicting, together: against a replay in plain Python, and oracles.

Belady with perfect fetching is the bound; a strided stream must be fetched whole; what
is random must not become worse than without.
"""

import random
import sys
from collections import OrderedDict

import numpy as np
import pytest

from stretto.cli import main
from stretto.errors import StrettoError
from stretto.search import evolve, problem
from stretto.search.problems import _fetching
from stretto.search.problems._fetching import replay_fetching

LINE = 64


def traced(path, rows):
    path.write_text("address,stream\n" + "".join(f"{a * LINE},{s}\n" for a, s in rows))
    return str(path)


def mixed(count, seed=1):
    """Return four streams with strides, and two that ask for anything."""
    draw, at, rows = random.Random(seed), dict.fromkeys(range(4), 0), []
    for _ in range(count):
        stream = draw.randrange(6)
        if stream < 4:
            at[stream] += (1, 2, 3, 1)[stream]
            if draw.random() < 0.01:
                at[stream] = draw.randrange(1 << 14)
            rows.append((at[stream], stream))
        else:
            rows.append((min(900, int(draw.paretovariate(0.8))) + (1 << 24), stream))
    return rows


def lru(rows, capacity, *, ahead):
    """Return misses of LRU, which fetches a stride ahead that came twice in a row."""
    held, last, steps, missed = OrderedDict(), {}, {}, 0
    for address, stream in rows:
        step = address - last.get(stream, 0)
        again = steps.get(stream, (0, 0))
        steps[stream] = (step, again[1] + 1 if step == again[0] else 0)
        last[stream] = address
        missed += address not in held
        held[address] = True
        held.move_to_end(address)
        if ahead and step and steps[stream][1] > 1 and address + step not in held:
            held[address + step] = True
        while len(held) > capacity:
            held.popitem(last=False)
    return missed


@pytest.mark.parametrize("ahead", [False, True])
def test_misses_are_those_of_a_plain_replay(tmp_path, ahead):
    """Of a few lines the oldest leaves, which is nearly the oldest of all."""
    rows = mixed(6000)
    made = problem("prefetch", trace=traced(tmp_path / "t.csv", rows), size=0.05)
    text = "fetch = run > 1" if ahead else "score = -age"
    found = made.figures(made.parse(text), 0, len(rows))
    exact = lru(rows, made._capacity, ahead=ahead) / len(rows)

    assert 1 - found["hit_rate"] == pytest.approx(exact, rel=0.03)


def test_a_stream_is_fetched_whole_and_what_is_random_is_no_worse(tmp_path):
    """All but its first requests; and found policies lose at most 1 % to none."""
    strided = [(3 * i, 0) for i in range(4000)]
    made = problem("prefetch", trace=traced(tmp_path / "s.csv", strided))
    found = made.figures(made.parse("fetch = run > 1"), 0, 4000)
    assert found["hit_rate"] > 0.998
    assert found["accuracy"] > 0.998
    draw = random.Random(3)
    wild = [(draw.randrange(900), 0) for _ in range(6000)]
    made = problem("prefetch", trace=traced(tmp_path / "r.csv", wild))
    found = evolve(made, evals=40, seed=1)
    assert found.held_out["hit_rate"] >= found.first["hit_rate"] - 0.01


def test_no_policy_beats_perfect_fetching_or_breaks_the_cache(tmp_path):
    """Whatever is fetched, a request hits at most once what came in for it."""
    rows = mixed(800)
    made = problem("prefetch", trace=traced(tmp_path / "t.csv", rows), size=0.01)
    draw = random.Random(5)
    for _ in range(30):
        found = made.figures(made.fresh(draw), 0, 800)
        assert 0 <= found["hit_rate"] <= 1
        assert 0 <= found["accuracy"] <= 1
        assert 0 <= found["fetched"] <= _fetching.FARTHEST
        first = len({address for address, _ in rows}) / len(rows)
        assert found["hit_rate"] - found["fetched"] <= 1 - first + 1e-9


def test_it_is_the_same_compiled_and_as_it_stands(tmp_path):
    """The same counts."""
    rows = mixed(400)
    made = problem("prefetch", trace=traced(tmp_path / "t.csv", rows), size=0.05)
    text = "fetch = run > 0\nahead = 3\nscore = count / age"
    fast = made.figures(made.parse(text), 0, 400)
    counts = []

    def plain(*given):
        replay_fetching.py_func(*given)
        counts.append(given[-1].copy())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules[type(made).__module__], "replay_fetching", plain)
        with np.errstate(all="ignore"):
            assert fast == made.figures(made.parse(text), 0, 400)
    assert counts[0][2] > 0


@pytest.mark.parametrize("part", ["fetch", "score"])
def test_parts_that_are_not_searched_stay_as_lru_has_them(tmp_path, part):
    """So that what is found apart can be held against what is found together."""
    path = traced(tmp_path / "t.csv", mixed(1500))
    found = evolve(problem("prefetch", trace=path, part=part), evals=40, seed=1)
    lines = dict(line.split(" = ", 1) for line in found.text.splitlines())

    assert ("-age" == lines["score"]) == (part == "fetch") or part == "fetch"
    if part == "score":
        assert ("1 < 0", "1") == (lines["fetch"], lines["ahead"])


LACKEY = """==1== Lackey, an example Valgrind tool
I  0400d7d4,8
 L 1ffeffe7e,8
I  0400d7d8,3
 S 1ffefff00,8
 M 0421c7cc,4
I  0400d7d4,8
 L 1ffeffe80,8
"""


def test_what_lackey_prints_is_read(tmp_path):
    """Loads, stores and both, each by its instruction; what else is said is not."""
    (tmp_path / "lackey.txt").write_text(LACKEY)
    made = problem("prefetch", trace=str(tmp_path / "lackey.txt"))

    assert [a // LINE for a in (0x1FFEFFE7E, 0x1FFEFFF00, 0x421C7CC, 0x1FFEFFE80)] == [
        *made._addresses
    ]
    assert [0, 1, 1, 0] == [*made._streams]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("t.csv", "a,b\n1,2\n", "no column address"), ("t.csv", "address\nx\n", ":2:"),
        ("t.csv", "address\n-5\n", ":2:.*0 or more"), ("t.csv", "address\n5\n", "1 r"),
        ("t.csv", "address\n" + "9" * 30 + "\n", ":2:"), ("t.txt", "", "0 requests"),
        ("t.txt", " L zz,4\n", "t.txt"), ("t.csv", "\0", "t.csv"),
    ],
)  # fmt: skip
def test_what_is_no_trace_is_refused(tmp_path, capsys, name, text, said):
    """In one line that names the file, and where."""
    (tmp_path / name).write_text(text)
    with pytest.raises(StrettoError, match=said):
        problem("prefetch", trace=str(tmp_path / name))
    assert 2 == main(["search", "prefetch", str(tmp_path / name)])
    assert 1 == len(capsys.readouterr().err.splitlines())
