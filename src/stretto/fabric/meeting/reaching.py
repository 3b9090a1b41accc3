"""Why ranks of several hosts do not meet: what is wrong with an address, in words."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket

_AGAIN_S = 0.5
_SERVING = {
    errno.EADDRINUSE: "another process has this port: end it, or give all ranks "
    "another port",
    errno.EADDRNOTAVAIL: "no interface of this host has it: start rank 0 on the host "
    "that has, or give all ranks an address of this one",
    errno.EACCES: "this process may not have the port: give all ranks one above 1023",
}


def why_not_served(address: tuple[str, int], error: Exception) -> str:
    """Return why rank 0 cannot listen at an address, and what to do."""
    number = getattr(error, "errno", None)
    why = os.strerror(number) if number in _SERVING else str(error)
    advice = _SERVING.get(number or 0, "give all ranks an address of rank 0's host")
    return (
        f"rank 0 on {socket.gethostname()} cannot serve {address[0]}:{address[1]}: "
        f"{why}; {advice}"
    )


def why_not_reached(address: tuple[str, int]) -> str:
    """Return what comes of one more attempt to reach rank 0, in words."""
    here = socket.gethostname()
    try:
        with socket.create_connection(address, timeout=_AGAIN_S):
            return ""
    except (socket.gaierror, UnicodeError) as e:
        return f"{here} does not know the name {address[0]} ({e})"
    except ConnectionRefusedError:
        if is_loopback(address[0]):
            return (
                f"{address[0]} is {here} itself, where nobody listens; give the "
                "address at which other hosts reach rank 0's"
            )
        return "nobody listens there: rank 0 has not started, or has another port"
    except TimeoutError:
        return (
            f"no answer comes to {here}: a firewall may drop what goes to this port, "
            "or no host has the address"
        )
    except OSError as e:
        return f"{here} finds no way there: {e.strerror or e}"


def loopback_hint(address: tuple[str, int]) -> str:
    """Return what rank 0 should know of its address, or nothing."""
    if not is_loopback(address[0]):
        return ""
    return (
        f"; at {address[0]}:{address[1]} only ranks on {socket.gethostname()} can "
        "come: for those on other hosts, give an address at which they reach it"
    )


def is_loopback(host: str) -> bool:
    """Return whether a name stands for this host alone."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        return all(ipaddress.ip_address(x[4][0]).is_loopback for x in found)
    except (OSError, ValueError):
        return False
