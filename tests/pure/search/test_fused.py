"""The problem of weaves, where there is no GPU: proved, counted, the same each time."""

from __future__ import annotations

import random

import pytest

from stretto.cli import main
from stretto.compiler.weaves import LOADS, FoundWeave, Weave, placed
from stretto.search import evolve, problem, replay
from stretto.search.problems._counting import WeaveCosts, counted


def fused(load: str = "moe_dispatch_combine", **more):
    return problem("fused", **{"load": load, "device": "none", **more})


@pytest.mark.parametrize("load", LOADS)
def test_a_search_is_the_same_each_time_and_better_than_its_start(load: str) -> None:
    """The same seed gives the same run, and a better weave than the first."""
    found = [evolve(fused(load), evals=40, seed=3) for _ in range(2)]
    assert found[0].text == found[1].text
    assert list(map(repr, found[0].run.rows())) == list(map(repr, found[1].run.rows()))
    assert found[0].held_out["counted_us"] < found[0].first["counted_us"]
    assert replay(fused(load), found[0].run) == 0
    assert all(not one.verdict.refused for one in found[0].run.rows())


def test_changes_are_proved_and_print_as_they_are_read() -> None:
    """What a search makes of weaves is right before it is judged."""
    made, rng = fused(ranks=4, tokens=8192), random.Random(1)
    new = 0
    for way in made.changes():
        for parent in made.seeds():
            child = made.change(way, [parent, parent], rng)
            assert made.parse(made.spell(child)) == child
            new += child != parent
    assert new > 20


@pytest.mark.parametrize("load", sorted({*LOADS} - {"kv_transfer"}))
@pytest.mark.parametrize("ranks", [4, 8])
def test_more_ranks_begin_with_a_share_at_a_time(load: str, ranks: int) -> None:
    """Of more than two ranks, one's share is used while another's comes: it is best."""
    made = fused(load, ranks=ranks)
    cost = {str(w): made.judge(w, 0, fresh=0).cost for w in made.seeds()}
    best = min(cost, key=cost.__getitem__)
    assert f"do {ranks - 1}." in best
    assert f"do 1-{ranks - 1}." not in best
    assert len(fused(load).seeds()) < len(cost)


def test_weaves_that_do_the_same_are_one() -> None:
    """An order that no stream can tell from another is not judged twice."""
    made = fused("gemm_all_gather")
    one = "parts=1 | m free; a push 1.0; m do 0.0; m came 1.0; m do 1.0"
    other = "parts=1 | m free; m do 0.0; a push 1.0; m came 1.0; m do 1.0"
    later = "parts=1 | m free; a push 1.0; m came 1.0; m do 0.0; m do 1.0"
    said = [made.behaviour(made.parse(text)) for text in (one, other, later)]
    assert said[0] == said[1] != said[2]


def test_the_count_is_that_of_the_longest_way() -> None:
    """Counted time is that of the slower of link and processor."""
    costs = WeaveCosts(100, 200, meet_us=5, copy_us=0, kernel_us=0, host_us=0)
    text = "parts=1 graph | m free; a push 1.0; m do 0.0; m came 1.0; m do 1.0"
    shape = LOADS["gemm_all_gather"]
    weave = Weave.parse(text, shape, 2)
    us = counted(placed(weave, shape), 1, costs, graph=True)
    assert us == pytest.approx(0.5 + 5 + 200 + 5 + 200, abs=2)
    slow = WeaveCosts(900, 200, meet_us=5, copy_us=0, kernel_us=0, host_us=0)
    us = counted(placed(weave, shape), 1, slow, graph=True)
    assert us == pytest.approx(0.5 + 5 + 900 + 5 + 200, abs=2)


def test_the_command_writes_what_is_read_again(tmp_path, capsys) -> None:
    """A found weave is a file that says for what it is; more judges are refused."""
    path, run = tmp_path / "found.toml", tmp_path / "run.db"
    words = ["search", "fused", "gemm_reduce_scatter", "--device", "none"]
    assert main([*words, "--evals", "40", "-o", str(path), "--db", str(run)]) == 0
    found = FoundWeave.read(path)
    assert (found.load, found.ranks, found.tokens) == ("gemm_reduce_scatter", 2, 8192)
    assert found.text in capsys.readouterr().out
    assert main(["search", "replay", str(run)]) == 0
    assert main([*words, "--jobs", "2"]) == 2
    assert "processes of its own" in capsys.readouterr().err
