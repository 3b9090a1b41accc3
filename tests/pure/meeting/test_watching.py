"""Who looks for the only job of a user: what is taken for none, for one, for more."""

import socket

import pytest

from stretto.errors import CallError, RendezvousError
from stretto.fabric.meeting import watching as module
from stretto.fabric.meeting.greet import Unanswered


class Meeting:
    is_closed = False

    def close(self):
        self.is_closed = True


@pytest.fixture
def jobs(monkeypatch):
    """Have sockets that answer, each in turn, with what a test puts into a list."""
    answers, asked = [], []

    def reached():
        return (socket.socket() for _ in answers)

    def greet(connection, **how):
        connection.close()
        nth = len(asked) % len(answers)
        asked.append(nth)
        one = answers[nth].pop(0) if len(answers[nth]) > 1 else answers[nth][0]
        if isinstance(one, Exception):
            raise one
        return one

    monkeypatch.setattr(module, "reached", reached)
    monkeypatch.setattr(module, "greet", greet)
    return answers, asked


def test_a_job_whose_ranks_are_still_starting_is_asked_again(jobs):
    """Others on this host, engines say, refuse at once, and are no reason to wait."""
    answers, asked = jobs
    refused, silent = RendezvousError("an engine"), Unanswered("it hangs")
    mine = Meeting()
    answers += [[refused], [silent, silent, mine]]

    with module.watching() as meeting:
        assert meeting is mine
    assert mine.is_closed
    assert 6 == len(asked)


def test_who_never_answers_is_no_job_in_the_end(jobs, monkeypatch):
    """Nor is it waited for where another answers."""
    monkeypatch.setattr(module, "_BEGIN_S", 0.05)
    answers, asked = jobs
    answers += [[Unanswered("it hangs")]]

    with pytest.raises(CallError, match="no job of this user"), module.watching():
        pass
    assert len(asked) > 1
    mine = Meeting()
    answers += [[mine]]
    with module.watching() as meeting:
        assert meeting is mine


def test_two_jobs_are_to_be_told_apart_by_name(jobs):
    """Both are left."""
    both = Meeting(), Meeting()
    answers, _ = jobs
    answers += [[both[0]], [both[1]]]

    with pytest.raises(CallError, match="2 jobs are found"), module.watching():
        pass
    assert both[0].is_closed
    assert both[1].is_closed
