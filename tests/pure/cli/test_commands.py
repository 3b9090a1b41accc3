"""The command line: what it prints, and the status that it ends with."""

import json
import xml.etree.ElementTree as ET

import pytest

from stretto import cli, topology
from stretto.cli.options import below
from stretto.program import algorithms
from stretto.program.ir import spell_op, steps_of
from stretto.program.ir.drawing import svg

MINE = '''
from stretto import algorithm, reduce

@algorithm("all_reduce/mine")
def mine(ranks):
    """Everyone reads everyone."""
    for r in ranks:
        r.output[:] = reduce(q.input[:] for q in ranks)

@algorithm("all_reduce/forgetful")
def forgetful(ranks):
    """Rank 0 forgets itself."""
    for r in ranks:
        r.output[:] = reduce(q.input[:] for q in ranks[1:])

@algorithm("all_reduce/outside")
def outside(ranks):
    """There is no such chunk."""
    for r in ranks:
        r.output[0:9] = r.input[0:9]
'''


@pytest.fixture
def mine(tmp_path):
    """A file with three algorithms, one of them right."""
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    return path


def actions(parser=None, path=()):
    """Yield the words that have help of their own, those of one verb together."""
    for word, inner in below(parser or cli.parser()).items():
        if path:
            yield " ".join((*path, word))
        yield from actions(inner, (*path, word))


@pytest.mark.parametrize("action", sorted(actions()))
def test_an_action_has_help_of_its_own(stretto, action):
    """Which says what it does, and takes no options of other actions."""
    status, out, _ = stretto(*action.split(), "--help")
    usage, about = out.split("\n\n")[:2]

    assert 0 == status
    assert usage.startswith(f"usage: stretto {action} [-h]")
    assert about[0].isupper()
    assert about.endswith(".")


def test_actions_are_those_of_the_guides():
    """Of verbs that take a word first."""
    assert {"trace report", "trace attach", "elastic drain", "cc show"} <= {*actions()}


@pytest.mark.parametrize("command", ["", *cli.commands()])
def test_help(golden, stretto, monkeypatch, command):
    """What a command takes is frozen."""
    monkeypatch.setenv("COLUMNS", "80")
    status, out, _ = stretto(*command.split(), "--help")

    assert 0 == status
    golden(out)


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("lisst", "list"),
        ("simulte all_reduce/ring", "simulate"),
        ("run all_reduce/ring --shedule x", "--schedule"),
        ("trace report FILE --perfeto x", "--perfetto"),
    ],
)
def test_a_word_that_is_not_known_is_answered_with_the_nearest(capsys, words, meant):
    """Verbs, and the options of that verb."""
    with pytest.raises(SystemExit) as ended:
        cli.main(words.split())

    assert 2 == ended.value.code
    assert capsys.readouterr().err.endswith(f"; did you mean {meant}?\n")


def test_the_commands_are_those_of_the_design():
    """One file a command, found by scanning."""
    assert {"demo", "doctor", "list", "run", "show", "simulate", "verify"} <= set(
        cli.commands()
    )


def test_list_names_everything(stretto):
    """Collectives, algorithms with their ranks, machines."""
    status, out, _ = stretto("list", "--json")
    told = json.loads(out)

    assert 0 == status
    assert ["algorithms", "collectives", "machines"] == sorted(told)
    assert list(algorithms.names()) == [row["name"] for row in told["algorithms"]]
    assert {"name", "collective", "ranks"} == set(told["algorithms"][0])
    swing = next(r for r in told["algorithms"] if r["name"] == "all_reduce/swing")
    assert "powers of two" == swing["ranks"]
    assert set(topology.names()) == set(told["machines"])
    assert "all_reduce/swing" in stretto("list")[1]


def test_verify_proves_a_users_file(stretto, mine):
    """Status 0, one row a number of ranks."""
    status, out, _ = stretto("verify", f"{mine}:mine", "--ranks", "2,3-4", "--json")
    told = json.loads(out)

    assert 0 == status
    assert "verify" == told["command"]
    assert [(2, True), (3, True), (4, True)] == [
        (row["ranks"], row["ok"]) for row in told["rows"]
    ]


def test_verify_says_why_not_with_the_users_line(stretto, mine):
    """Status 1, and the reason points at the file."""
    status, _, err = stretto("verify", f"{mine}:forgetful", "--ranks", "3")

    assert 1 == status
    assert "PromiseError" in err
    assert "missing [0]" in err
    assert "mine.py:14" in err


def test_verify_refuses_what_lies_outside(stretto, mine):
    """A range outside of the buffer is unproved, not unreadable."""
    status, _, err = stretto("verify", f"{mine}:outside", "--ranks", "2")

    assert 1 == status
    assert "BoundsError" in err


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["{file}:absent"], "no algorithm or program named 'absent'; it has"),
        (["no/such.py:x"], "no file no/such.py"),
        (["no/such.xml"], "no file no/such.xml; want MSCCL XML"),
        (["no/such.txt"], "no file no/such.txt; want a program's text"),
        (["all_reduce/rign"], "known: all_reduce/ring"),
        (["all_reduce/ring", "--ranks", "two"], "want numbers such as 2,3,4-8"),
        (["all_reduce/ring", "--param", "root"], "want NAME=VALUE"),
        (["all_reduce/ring", "--param", "root=1"], "takes no root"),
        (["all_reduce/ring", "--schedule", "shove"], "'shove'; known: push"),
        (["all_reduce/ring", "--ranks", "8-4"], "want numbers such as 2,3,4-8, rising"),
        (["all_reduce/ring", "--ranks", "2-999999999"], "at most 4096 of them"),
        (["{text}"], "line 2: got 'r0.output[0]'"),
        (["{binary}"], "codec can't decode"),
        ([], "the following arguments are required"),
    ],
)
def test_what_cannot_be_judged_is_said_in_a_line(
    stretto, mine, tmp_path, words, reason
):
    """Status 2, and what was wanted."""
    places = {"file": mine}
    places["text"] = tmp_path / "program.txt"
    places["text"].write_text(
        "program all_reduce/x collective=all_reduce ranks=1\n  r0.output[0]\n"
    )
    places["binary"] = tmp_path / "binary.txt"
    places["binary"].write_bytes(b"\xff\xfe\x00")
    status, out, err = stretto("verify", *[w.format(**places) for w in words])

    assert 2 == status
    assert reason in err
    assert "" == out


def test_verify_reads_the_text_of_a_program(stretto, tmp_path):
    """What `show` prints can be judged."""
    path = tmp_path / "ring.txt"
    path.write_text(stretto("show", "all_reduce/ring", "--ranks", "3")[1])

    assert 0 == stretto("verify", str(path))[0]


def test_verify_judges_a_pinned_schedule_in_place(stretto):
    """A plan that would overwrite what peers still read is not proved."""
    words = ["verify", "all_reduce/one_shot", "--ranks", "2"]
    pinned = ["--schedule", "pull bulk zero_copy"]

    assert 0 == stretto(*words, *pinned)[0]
    status, _, err = stretto(*words, *pinned, "--in-place")
    assert 1 == status
    assert "PlanError" in err


def test_show_asks_which_algorithm_of_a_file(stretto, mine):
    """It shows one; `verify` proves them all."""
    status, out, err = stretto("show", str(mine))

    assert (2, "") == (status, out)
    assert "has 3 algorithms; want" in err


def test_show_prints_the_program_and_the_plan(golden, stretto):
    """Both are text that parses back."""
    program = stretto("show", "all_reduce/two_shot", "--ranks", "2")[1]
    plan = stretto(
        *("show", "all_reduce/two_shot", "--ranks", "2", "--plan"),
        *("--schedule", "push packets"),
    )[1]

    golden(program + "\n" + plan)


def test_show_draws_a_picture(stretto, tmp_path):
    """An SVG file: a line a rank, an arrow a transfer."""
    path = tmp_path / "ring.svg"
    status, out, _ = stretto(
        "show", "all_reduce/ring", "--ranks", "3", "--svg", str(path)
    )
    root = ET.fromstring(path.read_text())
    kinds = [(e.tag.rpartition("}")[2], e.get("class")) for e in root.iter()]

    assert 0 == status
    assert str(path) in out
    assert 3 == kinds.count(("line", "rank"))
    assert 6 == kinds.count(("path", "move"))
    assert 6 == kinds.count(("path", "move sum"))


@pytest.mark.parametrize("num_ranks", [8, 32])
def test_labels_of_a_picture_stay_apart(num_ranks):
    """One label a rank and step, within its column; a legend; colours that differ."""
    for name in algorithms.names():
        one = algorithms.get(name)
        if one.refuses(num_ranks) or name.startswith("permute/"):
            continue
        root = ET.fromstring(svg(one.build(num_ranks)))
        marks = list(root.iter("{http://www.w3.org/2000/svg}text"))
        heads = [m for m in marks if m.text in {"0", "1", "rank 0", "rank 1"}]
        column = {int(m.get("x")) for m in heads if m.get("text-anchor")}
        width = max(column) - min(column)
        labels = [m for m in marks if m.get("class") == "what"]
        places = [(m.get("x"), m.get("y")) for m in labels]

        assert len(set(places)) == len(places)
        assert all(7 * len(m.text) <= width + 7 for m in labels)
        assert sum("copied" in (m.text or "") for m in marks) == 1
        colors = {e.get("stroke") for e in root.iter() if e.get("class") == "move"}
        assert len(colors) <= 8


def test_a_picture_shows_every_transfer():
    """An arrow for each two ranks of a step, and each says what it moves."""
    program = algorithms.get("all_to_all/one_shot").build(8)
    root = ET.fromstring(svg(program))
    moves = [e for e in root.iter() if "move" in (e.get("class") or "").split()]
    told = {line for move in moves for line in move[0].text.splitlines()}

    assert 8 * 7 == len(moves)
    far = [op for op in program.ops if op.srcs[0].rank != op.dst.rank]
    assert {spell_op(op) for op in far} == told


def test_a_step_is_one_more_than_what_it_depends_on():
    """A ring of n takes a copy, n - 1 sums and n - 1 copies, each a step."""
    program = algorithms.get("all_reduce/ring").build(4)

    assert 7 == max(steps_of(program)) + 1
    assert "rank 3" in svg(program)


def test_simulate_gives_time_and_bandwidth_by_size(stretto):
    """Bus bandwidth is 2 (n - 1) / n of the algorithm's for an all_reduce."""
    status, out, _ = stretto(
        *("simulate", "all_reduce/ring", "--machine", "h200x4"),
        *("--sizes", "1K:16K:4,1M", "--json"),
    )
    told = json.loads(out)
    rows = told["rows"]

    assert 0 == status
    assert "simulate" == told["command"]
    assert [1 << 10, 1 << 12, 1 << 14, 1 << 20] == [row["nbytes"] for row in rows]
    for row in rows:
        assert row["algbw_gbps"] == pytest.approx(row["nbytes"] / row["time_us"] / 1e3)
        assert row["busbw_gbps"] == pytest.approx(row["algbw_gbps"] * 1.5)
    assert rows[0]["time_us"] < rows[-1]["time_us"]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--machine", "h200x4x"], "known: "),
        (["--sizes", "1Q"], "want a number, or one with K, M or G"),
        (["--sizes", "4K:1K"], "want a rising range"),
        (["--ranks", "9"], "want a larger machine"),
    ],
)
def test_simulate_refuses_what_it_cannot_do(stretto, words, reason):
    """Status 2 and one line."""
    status, _, err = stretto("simulate", "all_reduce/ring", *words)

    assert 2 == status
    assert reason in err


def test_run_refuses_before_it_starts_a_process(stretto):
    """An operator that makes no sense, too few ranks, an unserved number."""
    assert 2 == stretto("run", "all_reduce/ring", "--op", "band")[0]
    assert 2 == stretto("run", "all_reduce/ring", "--ranks", "0")[0]
    assert 2 == stretto("run", "all_reduce/swing", "--ranks", "3")[0]
    some = ("--ranks", "3", "--param", "members=(0,2)")
    assert "rank 1 has no input" in stretto("run", "all_gather/ring", *some)[2]
    assert "want an algorithm of it" in stretto("run", "all_gather", *some)[2]
    assert (
        "complex64"
        in stretto("run", "all_reduce", "--dtype", "complex64", "--op", "min")[2]
    )


def test_doctor_tells_of_every_executor(stretto):
    """What is there and what is missing, a row each."""
    status, out, _ = stretto("doctor", "--json")
    told = json.loads(out)

    assert 0 == status
    parts = {row["part"] for row in told["rows"]}
    assert {"machine", "package", "executor cpu", "executor sim"} <= parts
