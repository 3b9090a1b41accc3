"""Weaves on ranks: any that is proved gives what one call after the other gives."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

import stretto
from stretto.errors import CallError, ParseError
from stretto.search import problem

torch = pytest.importorskip("torch")

from tests.host.torch_weaves import weaving  # noqa: E402

GOOD = weaving.GATHER


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


def test_what_is_wrong_or_dies_is_refused_and_the_next_is_judged() -> None:
    """A killed rank costs one verdict."""
    made = small()
    good = made.parse(GOOD)
    assert made.judge(good, 1, fresh=3).passed
    for rank in ranks_of(made):
        os.kill(rank, signal.SIGKILL)
        break
    refused = made.judge(good, 1, fresh=4)
    assert "SIGKILL" in refused.refused or "died" in refused.refused, refused
    assert made.judge(good, 1, fresh=5).passed
    wrong = made._ask("parts=2 | m free", 1, 2, 30.0)
    assert "0 times; want 1" in wrong["refused"]
    assert made.judge(good, 1, fresh=6).passed


def test_ranks_answer_for_long_and_leave_nothing(tmp_path: Path, monkeypatch) -> None:
    """More questions than a socket holds answers; then no file is left."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    made = small(ranks=3, tokens=66, width=16)
    good = "parts=1 | m free; a push 1-2.0; m do 0.0; m came 1-2.0; m do 1-2.0"
    assert made.judge(made.parse(good), 1, fresh=1).passed
    for _ in range(300):  # refused at once, and by all
        assert "times; want 1" in made._ask("parts=1 | m free", 1, 2, 30.0)["refused"]
    assert made.judge(made.parse(good), 1, fresh=2).passed
    os.kill(ranks_of(made)[1], signal.SIGKILL)
    began = time.monotonic()
    assert not made.judge(made.parse(good), 1, fresh=3).passed
    assert time.monotonic() - began < 30
    assert not list(tmp_path.iterdir())


def test_who_hangs_is_ended_at_the_deadline() -> None:
    """Ranks that do not answer are gone after it."""
    made = small()
    good = made.parse(GOOD)
    made.judge(good, 1, fresh=3)
    stopped = ranks_of(made)[0]
    os.kill(stopped, signal.SIGSTOP)
    began = time.monotonic()
    said = made._ask(GOOD, 1, 2, 2.0)
    assert "no verdict in 2 s" in said["refused"]
    assert time.monotonic() - began < 20
    assert not Path(f"/proc/{stopped}").exists() or is_gone(stopped)


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


def ranks_of(made) -> list[int]:
    """Return the processes below the judge that hold a communicator."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != made._judge.pid:
            try:
                if os.getsid(int(entry.name)) == made._judge.pid:
                    line = (entry / "maps").read_text()
                    found += [int(entry.name)] if "libtorch" in line else []
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
    return found


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
