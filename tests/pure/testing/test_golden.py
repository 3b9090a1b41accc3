"""Golden files: compared, written when asked, never passed over."""

import pytest
from tests.checking.golden import Golden


def test_a_missing_file_fails(tmp_path):
    """A new golden test fails until somebody has looked at its text."""
    golden = Golden(folder=tmp_path, room="ir", test="test_ring")

    with pytest.raises(AssertionError, match=r"no golden file ir/ring\.txt; .*update"):
        golden("program")


def test_what_was_written_is_accepted_and_nothing_else(tmp_path):
    """The text that was updated passes; another one fails and shows the difference."""
    Golden(folder=tmp_path, room="ir", test="test_ring", update=True)("one\ntwo")
    golden = Golden(folder=tmp_path, room="ir", test="test_ring")

    golden("one\ntwo\n")
    with pytest.raises(AssertionError, match=r"(?s)ir/ring\.txt differs.*-two.*\+2"):
        golden("one\n2\n")


def test_each_parameter_has_a_file_of_its_own(tmp_path):
    """A parametrised test keeps one readable file name for each of its cases."""
    name = "test_plan[all_reduce/ring-2 ranks]"
    Golden(folder=tmp_path, room="lower", test=name, update=True)("x")

    assert ["plan-all_reduce-ring-2-ranks.txt"] == [
        path.name for path in (tmp_path / "lower").iterdir()
    ]


def test_a_file_can_be_named(tmp_path):
    """Digests of many plans share one file, named by the test."""
    Golden(folder=tmp_path, room="lower", test="test_x", update=True)(
        "a 1", "digests.txt"
    )

    assert "a 1\n" == (tmp_path / "digests.txt").read_text()


def test_the_fixture_is_here(request, golden):
    """`golden` knows its room and its test."""
    assert ("testing", request.node.name) == (golden.room, golden.test)
