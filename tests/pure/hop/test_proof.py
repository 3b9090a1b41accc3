"""Both ends prove the secret before anything else is looked at; bytes only."""

import random

import pytest

from stretto.hop.tcp.proof import GREETING, Comer, Refused, Server

SECRET = b"s" * 32


def talk(comer, server):
    """Let both say what they say; return what the server answered last."""
    said = server.hear(comer.begin())
    said = server.hear(comer.hear(said))
    comer.hear(said)


def test_ends_that_know_the_secret_meet():
    """And the server knows who came, for which lane."""
    comer, server = Comer(SECRET, 3, 1, 2), Server(SECRET, 1)
    talk(comer, server)

    assert comer.is_done
    assert server.is_done
    assert (3, 2) == server.way


@pytest.mark.parametrize(
    ("comer", "server"),
    [
        (Comer(b"other", 3, 1, 0), Server(SECRET, 1)),
        (Comer(SECRET, 3, 1, 0), Server(b"other", 1)),
        (Comer(SECRET, 3, 2, 0), Server(SECRET, 1)),
    ],
)
def test_others_are_refused(comer, server):
    """Another secret on either side, or another rank than was called."""
    with pytest.raises(Refused):
        talk(comer, server)
    assert not server.is_done


def test_a_proof_is_of_no_use_again():
    """Every connection has nonces of its own."""
    comer, server = Comer(SECRET, 3, 1, 0), Server(SECRET, 1)
    begun = comer.begin()
    proof = comer.hear(server.hear(begun))
    again = Server(SECRET, 1)
    again.hear(begun)

    with pytest.raises(Refused):
        again.hear(proof)


def test_random_bytes_are_refused():
    """Whatever they are, and at any point."""
    rng = random.Random(5)
    for _ in range(200):
        server = Server(SECRET, 1)
        with pytest.raises(Refused):
            server.hear(rng.randbytes(server.want))
        server = Server(SECRET, 1)
        server.hear(GREETING + rng.randbytes(32))
        with pytest.raises(Refused):
            server.hear(rng.randbytes(server.want))
