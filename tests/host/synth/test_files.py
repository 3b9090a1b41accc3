"""What `stretto synth` writes is an ordinary algorithm: proved, timed, run, shown."""

from __future__ import annotations

import json

import pytest

from stretto.cli import main

pytestmark = [pytest.mark.host, pytest.mark.timeout(120)]

BULK = "push bulk zero_copy blocks=32"


def rows(capsys, *words):
    """Run a command that succeeds; return the rows of its document."""
    assert 0 == main([*words, "--json"])
    return json.loads(capsys.readouterr().out)["rows"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return where the files of this module are written."""
    return tmp_path_factory.mktemp("found")


@pytest.mark.parametrize(
    "collective",
    [
        "all_gather",
        pytest.param("reduce_scatter", marks=pytest.mark.slow),
        pytest.param("all_reduce", marks=pytest.mark.slow),
    ],
)
def test_a_found_file_goes_everywhere(capsys, folder, collective):
    """One file: written, proved, simulated, run on four processes, shown as CUDA."""
    file = str(folder / f"{collective}.py")
    place = ("--machine", "h200x4", "--size", "64M")
    (found,) = rows(capsys, "synth", collective, *place, "-o", file)

    assert found["verified"]
    assert found["gap"] < 0.006
    assert 0 == main(["verify", file, "--ranks", "4"])

    capsys.readouterr()
    (timed,) = rows(capsys, "simulate", file, *place, "--schedule", BULK)
    assert found["time_us"] < timed["time_us"] < 2 * found["time_us"]

    (ran,) = rows(capsys, "run", file, "--ranks", "4", "--size", "64K")
    assert ran["ok"]

    assert 0 == main(["show", file, "--cuda", "--dtype", "bfloat16"])
    assert f"// {collective}/h200x4_64m, 4 ranks" in capsys.readouterr().out


def test_a_group_with_relays_goes_everywhere(capsys, folder):
    """Two corners of a square, which the other two serve as relays."""
    file = str(folder / "group.py")
    place = ("--machine", "torus2x2", "--size", "64K")
    group = ("--group", "0,3", "--relays", "--budget", "1")
    (found,) = rows(capsys, "synth", "all_reduce", *place, *group, "-o", file)

    assert found["verified"]
    assert 0 == main(["verify", file, "--ranks", "4"])

    capsys.readouterr()
    (timed,) = rows(capsys, "simulate", file, *place)
    assert found["time_us"] == pytest.approx(timed["time_us"], rel=1e-6)

    where = ("--ranks", "4", "--size", "4K")
    (ran,) = rows(capsys, "run", file, *where, "--op", "avg")
    assert ran["ok"]

    assert 0 == main(["show", file, "--plan"])
    assert "members=(0,3)" in capsys.readouterr().out
    assert 0 == main(["show", file, "--cuda"])
    assert "// all_reduce/torus2x2_64k, 4 ranks" in capsys.readouterr().out
