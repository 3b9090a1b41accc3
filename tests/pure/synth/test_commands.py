"""`stretto bound` and `stretto synth`: what they print, write and refuse."""

from __future__ import annotations

import json
import time
from fractions import Fraction

import pytest
from tests.checking.certificates import RefusedError, check

from stretto import synth
from stretto.cli import main
from stretto.cli import synth as commands
from stretto.synth import clock


def run(capsys, *words):
    """Run a command; return its status and its JSON document."""
    status = main([*words, "--json"])
    return status, json.loads(capsys.readouterr().out)


def test_bound_prints_the_certificate(capsys):
    """Every size has its bound, and the cut or path that proves it."""
    status, document = run(
        capsys, "bound", "all_gather", "--machine", "ndv2x2", "--sizes", "1K,1M"
    )
    rows = document["rows"]

    assert 0 == status
    assert ["1K", "1M"] == [r["size"] for r in rows]
    assert "through 12.5 GB/s" in rows[1]["because"]


def test_bound_writes_certificates_that_are_read_again(capsys, tmp_path):
    """One for every size; the checker is told nothing else."""
    file = tmp_path / "proofs.json"
    words = ("--machine", "dgx_h100x2", "--sizes", "1K,1M", "--certificate", str(file))
    _, document = run(capsys, "bound", "all_reduce", *words)
    proofs = json.loads(file.read_text())

    for row, proof in zip(document["rows"], proofs, strict=True):
        us = Fraction(proof["us"])
        check(proof, proof["proof"], us)
        assert row["bound_us"] == float(us)
        with pytest.raises(RefusedError):
            check(proof, proof["proof"], us * 2)


@pytest.mark.parametrize(
    ("collective", "points"),
    [
        ("all_gather", [(1, 2, 2), (2, 2, 3)]),
        ("gather", [(1, 2, 2), (2, 2, 3)]),
        ("reduce", [(1, 2, 2), (2, 2, 2)]),
    ],
)
def test_bound_prints_the_frontier_of_a_box(capsys, collective, points):
    """Steps against rounds, each proved; who collects does it backwards."""
    words = ("--machine", "dgx1", "--frontier", "--chunks", "1,2")
    if collective != "all_gather":
        words += ("--root", "3")
    status, document = run(capsys, "bound", collective, *words)
    found = [(r["chunks"], r["steps"], r["rounds"]) for r in document["rows"]]

    assert 0 == status
    assert points == found[: len(points)]
    assert all(r["proved"] for r in document["rows"])
    assert [r[2] / r[0] for r in found] == [
        r["rounds_per_chunk"] for r in document["rows"]
    ]


def test_what_synth_writes_is_proved_by_verify(capsys, tmp_path):
    """The file is an ordinary algorithm; so are its XML's operations."""
    file, xml = tmp_path / "found.py", tmp_path / "found.xml"
    status, document = run(
        capsys,
        "synth",
        "all_gather",
        "--machine",
        "h200x4",
        "--size",
        "64K",
        "--split",
        "1",
        "--budget",
        "0",
        "-o",
        str(file),
        "--xml",
        str(xml),
    )
    (row,) = document["rows"]

    assert 0 == status
    assert row["verified"]
    assert row["time_us"] >= row["bound_us"]
    assert 0 == main(["verify", str(file), "--ranks", "4"])
    assert 0 == main(["verify", str(xml), "--ranks", "4"])
    assert 'minBytes="32768"' in xml.read_text()


def test_a_group_and_a_dead_link_are_part_of_the_question(capsys):
    """Ranks 0 to 3 of a DGX-1, without the link from 0 to 1."""
    words = ("--machine", "dgx1", "--group", "0-3", "--sizes", "1M")
    _, whole = run(capsys, "bound", "all_gather", *words)
    _, hurt = run(capsys, "bound", "all_gather", *words, "--dead-link", "0->1")

    assert whole["rows"][0]["bound_us"] < hurt["rows"][0]["bound_us"]


def test_a_group_is_simulated_where_it_is(capsys, tmp_path, monkeypatch):
    """Alone it is numbered anew and placed; with relays it is the whole machine."""
    monkeypatch.setattr(clock, "now", time.process_time)  # tests share the computer
    place, group = ("--machine", "dgx1", "--size", "256M"), ("--group", "0,1,4,5")
    words, times = ("--schedule", "written"), []
    for relays in ((), ("--relays",)):
        file = str(tmp_path / f"group{len(relays)}.py")
        found = (*place, *group, *relays, "--budget", "1", "-o", file)
        _, planned = run(capsys, "synth", "all_gather", *found)
        here = () if relays else group
        status, timed = run(capsys, "simulate", file, *place, *here, *words)
        us = planned["rows"][0]["time_us"]
        times.append(timed["rows"][0]["time_us"])

        assert 0 == status
        assert (8 if relays else 4) == timed["rows"][0]["ranks"]
        assert us == pytest.approx(times[-1], rel=1e-9)

    assert times[1] < times[0]
    xml = str(tmp_path / "group.xml")
    monkeypatch.setattr(synth, "synthesize", None)  # it is refused before any search
    assert 2 == main(["synth", "all_gather", *found, "--xml", xml])
    assert "MSCCL XML knows collectives among all ranks" in capsys.readouterr().err


def test_a_file_is_there_when_who_listens_goes_away(tmp_path, monkeypatch):
    """`stretto synth ... -o FILE | head -1`."""

    def gone(*said):
        raise BrokenPipeError

    monkeypatch.setattr(commands, "print_rows", gone)
    file = tmp_path / "found.py"
    main(
        ["synth", "all_gather", "--machine", "dgx1", "--budget", "0.5", "-o", str(file)]
    )

    assert "found by synthesis" in file.read_text()


def test_operations_that_cost_something_are_counted(capsys, tmp_path):
    """Of 64 pieces each would cost its operations; one is faster, and both are said."""
    file = tmp_path / "found.py"
    place = ("--machine", "h200x8", "--size", "1M")
    words = ("all_reduce", *place, "--budget", "4", "-o", str(file))
    status, found = run(capsys, "synth", *words)
    _, shipped = run(capsys, "simulate", "all_reduce/two_shot", *place)
    _, again = run(capsys, "simulate", str(file), *place)
    (row,) = found["rows"]

    assert 0 == status
    assert row["runs_us"] <= 1.01 * shipped["rows"][0]["time_us"]
    assert row["runs_us"] == pytest.approx(again["rows"][0]["time_us"])
    assert f"{row['runs_us']:.6g} us, simulated" in file.read_text()
    assert "us in the\nlink model" in file.read_text()


def test_unequal_parts_are_part_of_the_question(capsys):
    """Five eighths stay with the root, so less must leave it."""
    words = ("--machine", "torus2x2", "--sizes", "1M")
    _, equal = run(capsys, "bound", "scatter", *words)
    _, large = run(capsys, "bound", "scatter", *words, "--parts", "5,1,1,1")

    assert large["rows"][0]["bound_us"] < equal["rows"][0]["bound_us"]


def test_a_number_of_trees_may_be_asked_for(capsys):
    """One tree a root is simple, and the gap says what that costs."""
    words = ("all_gather", "--machine", "mi250x", "--size", "1G")
    words += ("--trees", "1", "--split", "8")
    status, document = run(capsys, "synth", *words)
    (row,) = document["rows"]

    assert 0 == status
    assert "trees k=1" == row["generator"]
    assert 342.857 / 266.667 - 1 < row["gap"] < 0.6


_SYNTH = ("synth", "all_gather", "--machine")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("bound", "all_gahter", "--machine", "dgx1"), "all_gather"),
        (("bound", "all_gather", "--machine", "dgx1", "--group", "a"), "0-3,8"),
        (("bound", "all_gather", "--machine", "dgx1", "--parts", "1,2"), "8 ranks"),
        (("bound", "all_gather", "--machine", "dgx1", "--parts", "a,b"), "5,1,1,1"),
        (("bound", "all_reduce", "--machine", "dgx1", "--frontier"), "equal parts of"),
        (("bound", "all_gather", "--machine", "dgx2", "--frontier"), "switches"),
        (("synth", "all_gather", "--machine", "dgx1", "--size", "1K:1M"), "want one"),
        (("synth", "all_gather", "--machine", "h200x4", "--sketch", "no"), "sketch"),
        (("synth", "scatter", "--machine", "dgx1", "--trees", "2"), "along a tree"),
        (
            (*_SYNTH, "dgx_a100x8", "--trees", "1", "--budget", "0"),
            "want a larger budget",
        ),
        ((*_SYNTH, "dgx1", "--trees", "2", "--parts", "5,1,1,1,1,1,1,1"), "equal par"),
    ],
)
def test_misuse_is_answered(capsys, words, why):
    """With exit status 2 and what would have been right."""
    assert 2 == main(words)
    assert why in capsys.readouterr().err


@pytest.mark.parametrize(
    "collective", [c for c in synth.COLLECTIVES if c != "all_reduce"]
)
@pytest.mark.parametrize(
    ("machine", "why"),
    [("h200x2", "got 1 switches; want"), ("uneven.toml", "3/2 and 1; want every rate")],
)
def test_a_frontier_is_of_links_that_rounds_count(
    capsys, tmp_path, collective, machine, why
):
    """Of each collective: what is rounded down would be proved, and is not so."""
    meshes = (
        f"[[box.meshes]]\npairs = [{pair}]\nbandwidth_gbytes_per_s = {rate}\n"
        "latency_us = 0.5\n"
        for pair, rate in (([0, 1], 1), ([1, 2], 1.5), ([0, 2], 1.5))
    )
    text = "".join(('about = "x"\nkind = "gpu"\n[box]\nranks = 3\n', *meshes))
    (tmp_path / "uneven.toml").write_text(text, encoding="utf-8")
    place = str(tmp_path / machine) if machine.endswith("toml") else machine

    assert 2 == main(["bound", collective, "--machine", place, "--frontier"])
    assert why in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (("--budget", "-3"), "argument --budget: '-3'; want a number from 0"),
        (("--budget", "nan"), "argument --budget: 'nan'; want a number from 0"),
        (("--relays",), "--relays: got no --group; want the ranks"),
        (("--group", "0-9"), "want ranks 0 to 7"),
        (("--group", "0-3,2"), "--group 0-3,2: names 2 twice"),
        (("--group", "1,4,6"), "nothing reaches ranks [4, 6], seen from rank 1"),
        (("--root", "0"), "--root 0: nobody is the root of all_gather; want it for"),
        (("--split", "0"), "--split '0': '0'; want numbers"),
        (("--trees", "-1"), "argument --trees: '-1'; want a whole number from 0"),
        (("--seed", "-5"), "argument --seed: '-5'; want a whole number from 0"),
        (
            ("--seed", "4294967296"),
            "argument --seed: '4294967296'; want a whole",
        ),
        (("-o", "no/such/folder/it.py"), "it.py: want a file in a folder that is"),
        (("--xml", "."), ".: want a file in a folder that is there"),
    ],
)
def test_what_cannot_be_meant_is_refused(capsys, words, match):
    """In a line that names the option and its value."""
    try:
        status = main(["synth", "all_gather", "--machine", "dgx1", *words])
    except SystemExit as e:  # the parser's own, after a line of how it is used
        status = e.code
    error = capsys.readouterr().err.partition("stretto synth: ")[2]

    assert 2 == status
    assert match in error
    assert 1 == len(error.strip().splitlines())


@pytest.mark.parametrize("command", ["bound", "synth"])
def test_a_root_is_a_rank_of_the_machine(capsys, command):
    """Also where the ranks of a group are numbered anew."""
    words = [command, "broadcast", "--machine", "dgx1", "--group", "4-6", "--size"]
    words += ["1M", *(("--budget", "0") if command == "synth" else ())]

    assert 0 == main([*words, "--root", "6"])
    capsys.readouterr()
    assert 2 == main([*words, "--root", "2"])
    assert "--root 2: want one of [4, 5, 6]" in capsys.readouterr().err
