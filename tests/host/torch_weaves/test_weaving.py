"""Weaves on ranks: any that is proved gives what one call after the other gives."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest

import stretto
from stretto.errors import CallError, ParseError
from stretto.search import asking, problem

torch = pytest.importorskip("torch")

from tests.host import warm  # noqa: E402
from tests.host.torch_weaves import weaving  # noqa: E402

GOOD = weaving.GATHER


@pytest.fixture(autouse=True)
def forked_judges(monkeypatch):
    """Fork who judges: dozens of ranks would import PyTorch."""
    monkeypatch.setattr(asking, "subprocess", warm.stand_in())


def small(**more):
    given = {"load": "gemm_all_gather", "device": "cpu", "tokens": 64, "width": 32}
    return problem("fused", **{**given, **more})


@pytest.mark.parametrize("ranks", [2, 3])
def test_any_proved_weave_is_right(ranks: int, tmp_path: Path) -> None:
    """Random weaves give what one call after the other gives, call after call."""
    many = stretto.spawn(weaving.weave, str(tmp_path), "cpu", ranks, 3, num_ranks=ranks)
    assert many[0] >= 24


def test_found_files_are_used_with_tensors_of_ours(tmp_path: Path) -> None:
    """`woven` gives what the operators give, and refuses other tensors."""
    stretto.spawn(weaving.use_found, str(tmp_path), num_ranks=2)


def test_a_search_runs_what_it_finds(tmp_path: Path) -> None:
    """Better candidates are run on ranks, and the winner on many inputs."""
    from stretto.search import evolve

    found = evolve(small(inputs=12), evals=12, seed=1, islands=2)
    ran = [one for one in found.run.rows() if one.trial.rung == 1]
    assert ran
    assert all(one.verdict.passed for one in ran)
    assert all(one.verdict.facts["distance"] < 1e-4 for one in ran)
    assert found.held_out["inputs"] == 12
    assert found.held_out["us"] > 0
    assert found.held_out["plain_us"] > 0


def asked(made, text: str, *, inputs: int = 2, deadline_s: float = 30.0) -> str:
    """Return why ranks refuse a text, if they do."""
    said = made._ask(text, 1, inputs, deadline_s, last=False)
    return said["refused"]


def is_gone(pid: int) -> bool:
    """Return whether a process has ended, or does so soon."""
    for _ in range(200):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


def test_what_is_wrong_or_dies_is_refused_and_the_next_is_judged() -> None:
    """Who is killed at work is named, and costs one verdict; idle ones cost none."""
    made = small()
    assert "0 times; want 1" in asked(made, "parts=2 | m free")
    assert not asked(made, GOOD)
    first = made._ranks.pids
    began = time.monotonic()
    killing = threading.Timer(1.0, os.kill, (first[1], signal.SIGKILL))
    killing.start()
    said = asked(made, GOOD, inputs=1_000_000)
    assert said.startswith("rank 1: its judge ended with -9"), said
    assert time.monotonic() - began < 20
    assert all(map(is_gone, first))
    assert not asked(made, GOOD)
    os.kill(made._ranks.pids[0], signal.SIGKILL)
    until = time.monotonic() + 10
    while made._ranks.is_alive() and time.monotonic() < until:
        time.sleep(0.01)  # its threads end one after the other
    assert not asked(made, GOOD)


def test_ranks_answer_for_long_and_leave_nothing(tmp_path: Path, monkeypatch) -> None:
    """Hundreds of questions to three ranks; then no file and no process is left."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    made = small(ranks=3, tokens=66, width=16)
    good = "parts=1 | m free; a push 1-2.0; m do 0.0; m came 1-2.0; m do 1-2.0"
    assert not asked(made, good)
    for _ in range(300):  # refused at once, and by all
        assert "times; want 1" in asked(made, "parts=1 | m free")
    assert not asked(made, good)
    ranks = made._ranks.pids
    made._ranks.kill()
    assert all(map(is_gone, ranks))
    assert not list(tmp_path.iterdir())


def test_who_hangs_is_ended_at_the_deadline() -> None:
    """Ranks that do not answer are gone after it."""
    made = small()
    assert not asked(made, GOOD)
    ranks = made._ranks.pids
    os.kill(ranks[0], signal.SIGSTOP)
    began = time.monotonic()
    assert "no verdict in 2 s" in asked(made, GOOD, deadline_s=2.0)
    assert time.monotonic() - began < 20
    assert all(map(is_gone, ranks))


def test_ranks_that_cannot_begin_say_why() -> None:
    """A width that no head of attention fits is said by whoever begins."""
    with pytest.raises(CallError, match=r"width 20; want heads of 16"):
        asked(small(load="all_gather_attention", width=20), GOOD)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"problem": "cache"}, "want what stretto search fused"),
        ({"load": "gemm"}, "want what stretto search fused"),
        ({"ranks": 0}, "want ranks"),
        ({"ranks": 9}, "want ranks"),
        ({"ranks": "2"}, "want ranks"),
        ({"found": 3}, "want what stretto search fused"),
        ({"found": "parts=2 | m free"}, "found: "),
    ],
)
def test_files_that_are_wrong_say_where(tmp_path: Path, change, why: str) -> None:
    """A file that is none of ours, or a wrong weave, is refused by name."""
    from stretto.compiler.weaves import FoundWeave

    values = {"problem": "fused", "found": GOOD, "load": "gemm_all_gather", "ranks": 2,
              "tokens": 64, "width": 32, **change}  # fmt: skip
    path = tmp_path / "found.toml"
    path.write_text("\n".join(f"{k} = {json.dumps(v)}" for k, v in values.items()))
    with pytest.raises(ParseError, match=why):
        FoundWeave.read(path)


def test_a_file_for_other_ranks_is_refused(tmp_path: Path) -> None:
    """A weave of two ranks is none of three."""
    said = weaving.FILE.format(text=GOOD, load="gemm_all_gather", ranks=2)
    path = tmp_path / "found.toml"
    path.write_text(said)
    with pytest.raises(stretto.RankFailed, match="is for 2 ranks; the group has 3"):
        stretto.spawn(_woven_by_three, str(path), num_ranks=3)


def _woven_by_three(comm, path: str) -> None:
    from stretto.torch import named, woven

    x = torch.ones(4, 4)
    woven(path, group=named(comm), x=x, w=x)


def test_bad_questions_are_refused() -> None:
    """Loads, ranks, sizes and devices that cannot be are said."""
    for given, why in (
        ({"load": "gemm"}, "want gemm_all_gather"),
        ({"ranks": 1}, "want 2 to 8 ranks"),
        ({"tokens": 63}, "that they divide"),
        ({"width": 3}, "a width of at least 16"),
        ({"device": "tpu"}, "want auto, cuda, cpu or none"),
        ({"load": "kv_transfer", "ranks": 4, "tokens": 64}, "want 2"),
    ):
        with pytest.raises(CallError, match=why):
            small(**given)
