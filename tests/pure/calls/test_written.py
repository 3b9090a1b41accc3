"""What the library writes and compiles itself is not taken for a user's line."""

from stretto import Communicator
from stretto.calls import VERBS
from stretto.errors import is_library


def test_verbs_that_were_written_are_the_librarys():
    """A user's traceback ends in a line of the user's."""
    written = {getattr(Communicator, name).__code__.co_filename for name in VERBS}

    assert all(map(is_library, written))
    assert "<stretto: all_reduce>" in written
    assert not is_library("<string>")
