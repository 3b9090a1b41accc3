"""Variables that make no sense are named, with what is wanted, where they are read."""

import os
import socket

import pytest

from stretto.errors import LaunchEnvironmentError, StrettoError
from stretto.executors.cuda.device.space import told_local_rank
from stretto.executors.cuda.flags.regions import regions
from stretto.fabric import hop
from stretto.fabric.hop.interface import address_towards, listen, rails_of
from stretto.fabric.hop.tcp.options import unpaced
from stretto.fabric.process import host_id
from stretto.fabric.secret import load_secret
from stretto.fabric.variables import number_of, text_of
from stretto.program.lang import algorithm
from stretto.runtime.calls import Elastic
from stretto.runtime.choice import Question
from stretto.runtime.choice.measured import of_one_rank
from stretto.runtime.choice.selector import Selector
from stretto.transfer import Engine

NO_UTF8 = os.fsdecode(b"h\xff")


def connection():
    """Choose a congestion control, for a connection that there is."""
    server = socket.create_server(("127.0.0.1", 0))
    with server, socket.create_connection(server.getsockname()) as one:
        unpaced(one)


def build():
    """Build a program that nobody has built before."""

    @algorithm("all_reduce/of_this_test")
    def plain(ranks):
        for r in ranks:
            r.output[0] = r.input[0]

    plain.build(2)


READ = {
    "STRETTO_HOST": host_id,
    "STRETTO_BITS": of_one_rank,
    "STRETTO_JOB": lambda: Engine("one").close(),
    "STRETTO_CARRIER": hop.chosen,
    "STRETTO_INTERFACE": lambda: (address_towards("127.0.0.1"), rails_of((), "")),
    "STRETTO_PORTS": lambda: listen("127.0.0.1").close(),
    "STRETTO_TCP_CONGESTION": connection,
    "STRETTO_MOST_OPERATIONS": build,
    "STRETTO_ELASTIC": Elastic.of_environment,
    "STRETTO_SECRET_FILE": load_secret,
    "STRETTO_CUDA_STREAMS": lambda: regions(2),
    "LOCAL_RANK": told_local_rank,
}
ANY_TEXT = {"STRETTO_HOST", "STRETTO_JOB"}


@pytest.mark.parametrize("variable", sorted(READ))
@pytest.mark.parametrize("text", ["many", NO_UTF8, "-1", "\u0661", "9" * 200])
def test_what_makes_no_sense_is_said_with_its_variable(monkeypatch, variable, text):
    """Numbers, names and files; also what is no UTF-8, which no frame could carry."""
    monkeypatch.setenv(variable, text)
    if variable in ANY_TEXT and text != NO_UTF8:
        READ[variable]()
        return
    with pytest.raises(StrettoError) as found:
        READ[variable]()
    assert variable in str(found.value)
    assert len(str(found.value)) < 700


def test_no_choice_hides_that_programs_cannot_be_built(monkeypatch):
    """Where nothing could be built, the reason is the variable, and not the call."""
    monkeypatch.setenv("STRETTO_MOST_OPERATIONS", "many")
    asked = Question(executor="cpu", collective="all_reduce", num_ranks=3, nbytes=40)
    with pytest.raises(LaunchEnvironmentError, match="STRETTO_MOST_OPERATIONS='many'"):
        Selector("cpu").choose(asked)


@pytest.mark.parametrize("text", ["", "0", "12", "007"])
def test_numbers_are_whole_and_nothing_is_the_default(monkeypatch, text):
    """What is not set and what is empty are one."""
    monkeypatch.setenv("STRETTO_ONE", text)
    assert (int(text) if text else 5) == number_of("STRETTO_ONE", 5)
    with pytest.raises(LaunchEnvironmentError, match="at least 13"):
        number_of("STRETTO_ONE", 5, 13)
    assert (text or "five") == text_of("STRETTO_ONE", "five")
