"""Ranks of several hosts that do not meet hear why, and what to do."""

import errno
import os
import socket

import pytest

from stretto.fabric.meeting.reaching import (
    is_loopback,
    loopback_hint,
    why_not_reached,
    why_not_served,
)


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.EADDRINUSE, "Address already in use; another process has this port"),
        (errno.EADDRNOTAVAIL, "no interface of this host has it: start rank 0 on"),
        (errno.EACCES, "give all ranks one above 1023"),
        (errno.ENFILE, "give all ranks an address of rank 0's host"),
    ],
)
def test_who_cannot_serve_hears_what_to_change(number, advice):
    """With the host, and the address as it was given."""
    said = why_not_served(("10.0.0.1", 80), OSError(number, os.strerror(number)))

    assert said.startswith(f"rank 0 on {socket.gethostname()} cannot serve 10.0.0.1:80")
    assert advice in said


def test_a_port_that_is_taken_is_told_as_such():
    """By the system itself, on this machine."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = taken.getsockname()[:2]
        with pytest.raises(OSError, match="in use") as raised:
            socket.create_server(address)

        assert "another process has this port" in why_not_served(address, raised.value)
        assert not why_not_reached(address)


def test_nobody_at_loopback_is_told_apart_from_nobody_elsewhere(monkeypatch):
    """There is one thing to do about each."""
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    here = why_not_reached(("localhost", port))
    assert f"localhost is {socket.gethostname()} itself, where nobody listens" in here

    def fails(error):
        def connect(address, timeout):
            raise error

        monkeypatch.setattr(socket, "create_connection", connect)
        return why_not_reached(("10.0.0.1", port))

    assert "rank 0 has not started" in fails(ConnectionRefusedError())
    assert "a firewall may drop" in fails(TimeoutError())
    assert "finds no way there: Network" in fails(OSError(101, "Network unreachable"))
    assert "does not know the name" in fails(socket.gaierror(-2, "unknown"))


@pytest.mark.parametrize(
    ("host", "alone"),
    [("localhost", True), ("127.0.0.5", True), ("::1", True), ("192.0.2.1", False)],
)
def test_an_address_of_this_host_alone_is_known(host, alone):
    """Rank 0 is told so when others have not come."""
    assert alone == is_loopback(host)
    assert alone == ("for those on other hosts" in loopback_hint((host, 1)))
