"""What tests of the command line share."""

import pytest

from stretto import cli


@pytest.fixture
def stretto(capsys):
    """Run a command; return its status and what it wrote."""

    def run(*words):
        try:
            status = cli.main(words)
        except SystemExit as e:
            status = e.code
        written = capsys.readouterr()
        return status, written.out, written.err

    return run
