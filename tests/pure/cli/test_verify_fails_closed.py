"""`stretto verify` ends with 0 only when all that was asked is proved."""

import json

import pytest

HEAD = "from stretto import algorithm, reduce\n\n"
GOOD = """
@algorithm("all_reduce/good")
def good(ranks):
    for r in ranks:
        r.output[:] = reduce(q.input[:] for q in ranks)
"""
WRONG_NAME = """
@algorithm("all_redoce/bad")
def bad(ranks):
    pass
"""
BREAKS_AT_5 = """
@algorithm("all_reduce/breaks")
def breaks(ranks):
    for r in ranks:
        r.output[:] = reduce(q.input[:] for q in ranks[:4] or ranks)
"""
DECLINES = """
from stretto import RanksError

@algorithm("all_reduce/even")
def even(ranks):
    if len(ranks) % 2:
        raise RanksError(f"{len(ranks)} ranks; want an even number")
    for r in ranks:
        r.output[:] = reduce(q.input[:] for q in ranks)
"""
BODIES = {
    "recursion": "    recursion.function(ranks)",
    "exits": "    raise SystemExit(0)",
    "divides": "    1 / 0",
    "yields": "    yield",
}


@pytest.fixture
def verify(stretto, tmp_path):
    """Prove what a file holds; return the status and what was written."""

    def run(text, *words, name="mine.py", variable=""):
        path = tmp_path / name
        path.write_text(HEAD + text)
        status, out, err = stretto("verify", f"{path}{variable}", *words)
        return status, out, err.replace(f"{tmp_path}/", "")

    return run


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("import sys\nsys.exit(0)\n", "mine.py:4: the file ends with sys.exit(0)"),
        (GOOD + "\nraise SystemExit\n", "the file ends with sys.exit(None)"),
        ("x = 1\n1 / 0\n", "mine.py:4: ZeroDivisionError"),
        ("def\n", "mine.py:3: SyntaxError"),
        ("return 3\n", "mine.py:3: SyntaxError"),
        ("x = 1\n", "no algorithm in it, so nothing is proved"),
    ],
)
def test_a_file_in_which_nothing_is_proved_is_refused(verify, text, reason):
    """Status 1, and why in one line."""
    status, out, err = verify(text)

    assert (1, "") == (status, out)
    assert reason in err
    assert 1 == err.count("\n")


@pytest.mark.parametrize("name", BODIES)
def test_what_an_authors_function_does_has_its_line(verify, name):
    """No internal frames: one line, with the author's file and line."""
    text = f"@algorithm('all_reduce/{name}')\ndef {name}(ranks):\n{BODIES[name]}\n"
    status, _, err = verify(text, "--ranks", "2")

    assert 1 == status
    assert f"all_reduce/{name}, 2 ranks: ProgramError: mine.py:" in err
    assert "Traceback" not in err
    assert 2 == err.count("\n")  # the reason, and that nothing was proved


def test_a_missing_argument_is_the_authors(verify):
    """The error is at the function, and says how to give it."""
    text = "@algorithm('all_reduce/x')\ndef x(ranks, group):\n    pass\n"
    status, _, err = verify(text, "--ranks", "2")

    assert 1 == status
    assert "mine.py:3: all_reduce/x: its function wants group" in err


def test_the_usual_numbers_of_ranks_find_what_breaks_at_5(verify):
    """From 2 to 9, and 16."""
    status, out, err = verify(BREAKS_AT_5, "--json")

    assert 1 == status
    assert [(n, n < 5) for n in (*range(2, 10), 16)] == [
        (row["ranks"], row["ok"]) for row in json.loads(out)["rows"]
    ]
    assert "5 ranks: PromiseError: mine.py:" in err


def test_numbers_that_an_author_declines_are_listed(verify, stretto):
    """By default; who asks for one by name is refused."""
    status, out, err = verify(DECLINES)

    assert 0 == status
    assert 4 == out.count("declined")
    assert "3 ranks: declined: RanksError: mine.py:9: 3 ranks; want an even" in err
    assert 1 == verify(DECLINES, "--ranks", "2,3")[0]
    assert 1 == stretto("verify", "all_reduce/swing", "--ranks", "3,4")[0]
    assert 0 == stretto("verify", "all_reduce/swing")[0]


def test_a_wrong_name_does_not_block_the_others(verify):
    """It is refused with its line; the others are proved."""
    status, out, err = verify(WRONG_NAME + GOOD, "--ranks", "2")

    assert 1 == status
    assert "all_reduce/good      2  yes" in out
    assert "bad: UnknownNameError: mine.py:4: no collective named" in err
    only = verify(WRONG_NAME + GOOD, "--ranks", "2", variable=":good")
    assert 0 == only[0]
    blamed = verify(WRONG_NAME + GOOD, variable=":bad")
    assert "all_redoce" in blamed[2]
    assert 0 != blamed[0]


def test_lines_that_use_a_wrong_name_do_not_block_the_others(verify):
    """They are passed over, by name or by line, and the file is not all right."""
    uses = "PROGRAM = bad.build(4)\nprint(bad)\n"
    status, out, err = verify(WRONG_NAME + uses + GOOD, "--ranks", "2")

    assert 1 == status
    assert "all_reduce/good      2  yes" in out
    assert "PROGRAM: ProgramError: mine.py:" in err
    assert "bad was refused, so this was passed over" in err
    assert "line " in err
    assert "is not defined" in verify("print(nowhere)\n" + GOOD)[2]


def test_a_collective_that_promises_nothing_proves_nothing(stretto):
    """A permute without pairs would be proved whatever it does."""
    status, _, err = stretto("verify", "permute/direct", "--ranks", "2")

    assert 1 == status
    assert "nothing to prove" in err
    pairs = ("--param", "pairs=((0,1),)")
    assert 0 == stretto("verify", "permute/direct", "--ranks", "2", *pairs)[0]


def test_what_an_author_prints_does_not_spoil_the_document(verify):
    """Standard output holds one JSON document."""
    status, out, _ = verify("print('hello')\n" + GOOD, "--ranks", "2", "--json")

    assert 0 == status
    assert ["all_reduce/good"] == [row["name"] for row in json.loads(out)["rows"]]
